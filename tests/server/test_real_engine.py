"""The server on the real engine with a tiny model: what users of other servers saw go wrong, asked of this one."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

MESSAGES = [{"role": "user", "content": "Write a word."}]


@pytest.fixture
def client(real: Any) -> Any:
    with real.client() as client:
        yield client


@pytest.fixture
def http(real: Any) -> Any:
    with real.http() as http:
        yield http


def ask(http: Any, **fields: Any) -> Any:
    """A chat completion as JSON; no end-of-text unless asked for, as random weights stop at random places."""
    response = http.post("/v1/chat/completions", json={"messages": MESSAGES, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def text_of(answer: Any, index: int = 0) -> str:
    return answer["choices"][index]["message"]["content"]


def test_greedy_answers_equal_the_recorded_ones(http: Any) -> None:
    """The oracle's greedy continuation, over HTTP, as far as its margins are clear."""
    data = np.load(Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "expected.npz")
    for name in ("p5", "p40"):
        unclear = data[f"{name}_greedy_margin"] < 2e-3
        length = int(np.argmax(unclear)) if unclear.any() else len(unclear)
        assert length >= 16
        body = {"prompt": data[f"{name}_ids"].tolist(), "temperature": 0, "max_tokens": length, "ignore_eos": True}
        answer = http.post("/v1/completions", json={**body, "return_token_ids": True}).json()
        assert answer["choices"][0]["token_ids"] == data[f"{name}_greedy"][:length].tolist()


def test_a_seed_fixes_the_answer_and_none_does_not(http: Any) -> None:
    seeded = {text_of(ask(http, seed=7, max_tokens=16)) for _ in range(3)}
    free = [ask(http, max_tokens=16) for _ in range(5)]
    assert len(seeded) == 1
    assert len({text_of(answer) for answer in free}) > 1
    again = ask(http, max_tokens=16, seed=free[0]["seed"])
    assert text_of(again) == text_of(free[0])  # the seed that was drawn is returned and repeats the answer


def test_neighbours_do_not_change_an_answer(http: Any) -> None:
    """Half seeded, half not, some greedy, some with top_k: each seeded one equals its solo run, to the last digit."""
    mine = {"seed": 11, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
    solo = ask(http, **mine)
    others = [
        {"temperature": 0},
        {"top_k": 1},
        {},
        {"seed": 12, "top_p": 0.5},
        {"repetition_penalty": 1.3},
        {"min_p": 0.2},
    ]
    with ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(ask, http, **{"max_tokens": 40, **fields}) for fields in others]
        together = [pool.submit(ask, http, **mine) for _ in range(2)]
        for future in together:
            assert future.result()["choices"] == solo["choices"]
        assert all(future.result()["choices"][0]["finish_reason"] == "length" for future in busy)


def test_choices_differ_and_the_first_keeps_the_seed(http: Any) -> None:
    three = ask(http, n=3, seed=4242, temperature=1.9, max_tokens=12)
    one = ask(http, seed=4242, temperature=1.9, max_tokens=12)
    assert len({text_of(three, index) for index in range(3)}) == 3
    assert text_of(three) == text_of(one)


@pytest.mark.parametrize("n", [1, 2])
def test_streams_equal_whole_answers(client: Any, n: int) -> None:
    body: dict[str, Any] = {
        "model": "model",
        "messages": MESSAGES,
        "n": n,
        "seed": 4242,
        "temperature": 1.9,
        "max_tokens": 20,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**body)
    texts, tokens = [""] * n, [[] for _ in range(n)]
    for chunk in client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert tokens == [choice.logprobs.content for choice in whole.choices]


def ids_of(answer: Any) -> list[int]:
    return answer["choices"][0]["token_ids"]


def test_frequency_penalty_pulls_both_ways(http: Any) -> None:
    body = {"temperature": 0, "max_tokens": 60, "return_token_ids": True}
    distinct = [len(set(ids_of(ask(http, **body, frequency_penalty=p)))) for p in (-2, 2)]
    assert distinct[0] < distinct[1]


def test_a_banned_token_never_appears(http: Any) -> None:
    first = ask(http, temperature=0, max_tokens=50, return_token_ids=True)["choices"][0]["token_ids"]
    banned = max(set(first), key=first.count)
    again = ask(http, temperature=0, max_tokens=50, return_token_ids=True, logit_bias={str(banned): -100})
    assert banned in first
    assert banned not in again["choices"][0]["token_ids"]


def test_bans_and_exclusive_tokens_hold_at_the_highest_temperature(http: Any) -> None:
    hot = {"temperature": 100, "max_tokens": 200, "return_token_ids": True, "seed": 9}
    banned = ask(http, **hot, logit_bias={str(token): -100 for token in range(600)})["choices"][0]["token_ids"]
    assert min(banned) >= 600
    only = ask(http, **hot, logit_bias={"70": 100, "71": 100, "72": 99})["choices"][0]["token_ids"]
    assert {70, 71} == set(only)


def test_min_tokens_holds_back_the_end(http: Any) -> None:
    end = 1019  # <|im_end|>
    forced = {"logit_bias": {str(end): 100}, "ignore_eos": False, "max_tokens": 30, "seed": 5}
    assert ask(http, **forced)["usage"]["completion_tokens"] == 1
    assert ask(http, **forced, min_tokens=20)["usage"]["completion_tokens"] == 21


def test_greedy_logprobs_have_the_chosen_token_on_top(http: Any) -> None:
    content = ask(http, temperature=0, max_tokens=10, logprobs=True, top_logprobs=5)["choices"][0]["logprobs"][
        "content"
    ]
    assert len(content) == 10
    for entry in content:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 5


def test_echo_scores_a_prompt_as_generation_did(http: Any) -> None:
    """The log-probabilities of generated tokens are found again, bit for bit, when the whole text is echoed."""
    prompt = [1018, 84, 503, 198]
    body = {"prompt": prompt, "max_tokens": 8, "seed": 3, "logprobs": 2, "return_token_ids": True, "ignore_eos": True}
    made = http.post("/v1/completions", json=body).json()["choices"][0]
    body = {"prompt": prompt + made["token_ids"], "max_tokens": 0, "logprobs": 2, "echo": True}
    echoed = http.post("/v1/completions", json=body).json()["choices"][0]
    assert echoed["finish_reason"] == "length"
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert len(echoed["logprobs"]["tokens"]) == len(prompt) + 8
    assert echoed["logprobs"]["token_logprobs"][len(prompt) :] == made["logprobs"]["token_logprobs"]
    assert echoed["text"].endswith(made["text"].rstrip("\ufffd"))


def test_stop_strings_at_every_offset(http: Any) -> None:
    """Wherever the stop string lies among tokens, the text ends right before it, and nothing past it is reported."""
    body = {"temperature": 1.0, "seed": 21, "max_tokens": 24, "logprobs": True, "return_token_ids": True}
    whole = text_of(ask(http, **body))
    for at in range(2, len(whole) - 6, 5):
        stop = whole[at : at + 5]
        if "\ufffd" in stop:
            continue
        answer = ask(http, **body, stop=[stop, "never this"])
        choice = answer["choices"][0]
        assert choice["message"]["content"] == whole[: whole.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        before_last = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"][:-1])
        assert choice["message"]["content"].replace("\ufffd", "").startswith(before_last.decode(errors="ignore"))
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        body_of_stream = {"messages": MESSAGES, "ignore_eos": True, **body, "stop": stop, "stream": True}
        streamed = http.post("/v1/chat/completions", json=body_of_stream)
        deltas = _deltas(streamed.text)
        assert "".join(deltas) == whole[: whole.index(stop)]
        assert all(deltas[1:-1]), "a chunk without text in the middle of a stream"


def _deltas(stream: str) -> list[str]:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]


def test_stop_token_ids_are_reported(http: Any) -> None:
    ids = ask(http, seed=9, max_tokens=8, return_token_ids=True)["choices"][0]["token_ids"]
    answer = ask(http, seed=9, max_tokens=8, stop_token_ids=[ids[3]])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == ids[3]
    assert answer["usage"]["completion_tokens"] == ids.index(ids[3]) + 1


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_repetition_guard_ends_a_loop(http: Any, route: str) -> None:
    prompt: dict[str, Any] = {"messages": MESSAGES} if route.startswith("chat") else {"prompt": "a"}
    looping = {**prompt, "logit_bias": {"40": 100}, "max_tokens": 30, "seed": 2, "return_token_ids": True}
    free = http.post(f"/v1/{route}", json=looping).json()["choices"][0]
    assert (free["finish_reason"], free["token_ids"]) == ("length", [40] * 30)
    guarded = http.post(f"/v1/{route}", json={**looping, "repetition_guard": {"period": 8, "repeats": 6}}).json()
    choice = guarded["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition")
    assert choice["token_ids"] == [40] * 6 and guarded["usage"]["completion_tokens"] == 6


def test_a_prompt_ending_inside_a_character_is_not_echoed(http: Any) -> None:
    pepper = http.post("/tokenize", json={"prompt": "Hello world 🌶", "add_special_tokens": False}).json()["tokens"]
    chunks = http.post(
        "/v1/completions", json={"prompt": pepper[:-1], "max_tokens": 4, "temperature": 0, "stream": True}
    ).text
    assert "Hello" not in chunks


def test_text_survives_the_round_trip(http: Any) -> None:
    for text in ("Příliš žluťoučký kůň", "🌶 你好世界", "a\u0000b", "  two  spaces\n\ttab"):
        tokens = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text


def test_a_repeated_prompt_is_cached_almost_whole(http: Any) -> None:
    prompt = [(7 * index) % 1000 for index in range(500)]
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
    usages = [http.post("/v1/completions", json=body).json()["usage"] for _ in range(3)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] == 0
    assert cached[1] == cached[2] == 480  # one block short of all, at most
    salted = http.post("/v1/completions", json={**body, "cache_salt": "other"}).json()["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_prompt_that_never_fits_is_refused_at_once_and_others_run(real: Any, http: Any) -> None:
    context = real.service.model.max_context
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, http, max_tokens=60, seed=1)
        refused = http.post("/v1/completions", json={"prompt": [5] * (context + 1), "max_tokens": 1})
        over = http.post("/v1/completions", json={"prompt": [5] * (context - 1), "max_tokens": 2})
        assert (refused.status_code, over.status_code) == (400, 400)
        assert refused.json()["error"]["code"] == over.json()["error"]["code"] == "context_length_exceeded"
        assert running.result()["usage"]["completion_tokens"] == 60


def test_prompt_and_answer_exactly_at_the_cap(real: Any, http: Any) -> None:
    context = real.service.model.max_context
    body = {"prompt": [5] * (context - 6), "max_tokens": 6, "ignore_eos": True}
    answer = http.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "length"


def test_disconnects_give_every_block_back(real: Any, eventually: Any) -> None:
    dice, errors = random.Random(3), []

    def leave(number: int) -> None:
        body = {"messages": MESSAGES, "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": number}
        with real.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            for _ in range(dice.randint(1, 12)):
                line = next(lines)
                if line.startswith("event: error"):
                    errors.append(line)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(leave, range(40)))
    assert not errors
    assert eventually(lambda: real.engine.num_open == 0 and real.service.bridge.num_running == 0, 20)
    blocks = real.engine.state()["kv_blocks"]
    assert all(states["held"] == 0 for states in blocks.values())
    with real.http() as http:
        assert ask(http, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_the_official_client_against_the_real_engine(client: Any) -> None:
    assert client.models.list().data[0].id == "model"
    answer = client.completions.create(model="model", prompt=["one", "two"], max_tokens=4, n=2, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    with pytest.raises(openai.BadRequestError, match="web_search_options"):
        client.chat.completions.create(model="model", messages=MESSAGES, web_search_options={})


def test_streams_share_the_engine_fairly(real: Any) -> None:
    """More streams than fit at once all end, each with its own text."""
    texts: dict[int, str] = {}
    lock = threading.Lock()

    def one(seed: int) -> None:
        with real.http() as http:
            answer = ask(http, seed=seed % 4, max_tokens=20)
        with lock:
            texts[seed] = text_of(answer)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(one, range(20)))
    assert len(texts) == 20
    for seed in range(4):
        assert len({texts[other] for other in range(seed, 20, 4)}) == 1


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_prompt_logprobs_are_those_of_the_drawn_tokens(http: Any, route: str) -> None:
    """An answer with its log-probabilities, then the same ids as a prompt: the same numbers, to the last digit."""
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 12}
    body = {"messages": MESSAGES} if route.startswith("chat") else {"prompt": "abc"}
    drawn = http.post("/v1/completions", json={"prompt": "a b c", "logprobs": 3, **asked}).json()["choices"][0]
    ids = drawn["prompt_token_ids"] + drawn["token_ids"]
    scored = http.post("/v1/completions", json={"prompt": ids, "prompt_logprobs": 3, **asked, "max_tokens": 1}).json()
    rows = scored["choices"][0]["prompt_logprobs"]
    assert rows[0] is None and len(rows) == len(ids)
    for row, token, logprob in zip(rows[-12:], ids[-12:], drawn["logprobs"]["token_logprobs"], strict=True):
        assert row[str(token)]["logprob"] == logprob
        assert row[str(token)]["rank"] == 1
    both = [http.post(f"/v1/{route}", json={**body, "prompt_logprobs": 2, "n": 2, **asked}).json() for _ in range(2)]
    found = [answer if route.startswith("chat") else answer["choices"][1] for answer in both]
    prompt_ids = (both[0] if route.startswith("chat") else both[0]["choices"][0])["prompt_token_ids"]
    assert found[0]["prompt_logprobs"] == found[1]["prompt_logprobs"]
    assert [str(token) in row for token, row in zip(prompt_ids[1:], found[0]["prompt_logprobs"][1:], strict=True)] == [
        True
    ] * (len(prompt_ids) - 1)
