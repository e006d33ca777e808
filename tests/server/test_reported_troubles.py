"""Kinds of trouble that users of speculating servers reported, asked of the real engine over HTTP, drafters at work.

The draft model is the target itself, so its drafts are right; n-gram is right now and then. Whatever is asked, the
answer has to be the plain one: alone, in a crowd, in a full cache, after a busy spell, while the policy changes.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx
import pytest

ALWAYS = {"enabled": True, "governor": "off", "type": "draft-model", "draft_tokens": 4, "max_batch": 8}
PLAIN = {"enabled": False}
PERIOD = [5, 6, 7, 8, 9, 10, 11]


@pytest.fixture
def client(drafting: Any) -> Iterator[httpx.Client]:
    with drafting.http() as client:
        yield client
        patch(client, enabled=True, governor="cost", type="auto", draft_tokens=None, max_batch=1)


def patch(client: httpx.Client, **policy: Any) -> None:
    answer = client.patch("/admin/speculation", json=policy)
    assert answer.status_code == 200, answer.text


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A completion's first choice, with its usage. Ends are ignored unless asked for: random weights stop anywhere."""
    body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    usage = {name: count for name, count in whole["usage"].items() if name != "prompt_tokens_details"}
    return {**whole["choices"][0], "usage": usage}


def prompt_of(seed: int, length: int = 40) -> list[int]:
    return random.Random(seed).choices(range(3, 900), k=length)


def side_by_side(drafting: Any, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to requests that are all sent at once."""

    def one(body: dict[str, Any]) -> dict[str, Any]:
        with drafting.http() as client:
            return complete(client, **body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(one, bodies))


def report_of(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    return complete(client, speculation={"report": True}, **fields)["speculation"]


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_fifty_prompts_do_not_drift(client: httpx.Client) -> None:
    """Reported as a tenth of the answers that change under a repetition penalty and a low temperature."""
    settings = {"repetition_penalty": 1.05, "temperature": 0.1, "top_p": 0.1, "max_tokens": 12, "seed": 7}
    patch(client, **PLAIN)
    plain = [complete(client, prompt=prompt_of(seed), **settings) for seed in range(50)]
    for kind in ("draft-model", "ngram"):
        patch(client, **{**ALWAYS, "type": kind})
        assert [complete(client, prompt=prompt_of(seed), **settings) for seed in range(50)] == plain


MIXED: dict[str, list[dict[str, Any]]] = {
    "seeds and a stop": [{"prompt": PERIOD * 5, "temperature": 1, "seed": seed, "stop": ["20:"]} for seed in range(8)],
    "a greedy neighbour": [{"prompt": PERIOD, "temperature": seed % 2, "seed": seed} for seed in range(8)],
    "top k": [{"prompt": PERIOD, "temperature": 1, "seed": 3, "top_k": count} for count in (1, 2, 3, 5, 8, 13, 30, 50)],
    "penalties": [{"prompt": PERIOD * 4, "frequency_penalty": value / 2} for value in range(-4, 4)],
}


@pytest.mark.parametrize("kind", MIXED)
def test_requests_side_by_side_are_what_they_are_alone(drafting: Any, client: httpx.Client, kind: str) -> None:
    """Reported as gibberish of mixed seeds, and as noise that depends on a row's place in the batch."""
    patch(client, **PLAIN)
    alone = [complete(client, **body) for body in MIXED[kind]]
    assert len({tuple(choice["token_ids"]) for choice in alone}) > 1
    for policy in (PLAIN, ALWAYS, {**ALWAYS, "type": "auto", "governor": "cost"}):
        patch(client, **policy)
        assert side_by_side(drafting, MIXED[kind]) == alone, policy


def test_seeded_and_unseeded_requests_do_not_mix(drafting: Any, client: httpx.Client) -> None:
    patch(client, **ALWAYS)
    seeded = {"prompt": PERIOD, "temperature": 1, "seed": 11}
    expected = complete(client, **seeded)
    answers = side_by_side(drafting, [seeded, {**seeded, "seed": None}] * 4)
    assert answers[::2] == [expected] * 4
    assert len({tuple(choice["token_ids"]) for choice in answers[1::2]}) == 4, "unseeded requests share no seed"


FIELDS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3, "seed": 5},
    "top_p": {"temperature": 2, "seed": 5, "top_p": 0.3},
    "min_p": {"temperature": 2, "seed": 5, "min_p": 0.5},
    "presence": {"presence_penalty": 2},
    "frequency": {"frequency_penalty": 2},
    "repetition": {"repetition_penalty": 1.8},
    "a ban": {"logit_bias": {str(token): -100 for token in range(3, 500)}},
    "a hot ban": {"logit_bias": {str(token): -100 for token in range(3, 500)}, "temperature": 100, "seed": 5},
    "a wish": {"logit_bias": {"77": 100}},
    "hot wishes": {"logit_bias": {str(token): 100 for token in range(70, 78)}, "temperature": 100, "seed": 5},
    "stop token": {"stop_token_ids": list(range(100, 1000))},
    "the end": {"ignore_eos": False, "logit_bias": {"1019": 8}},
    "guard": {"logit_bias": {"77": 100}, "repetition_guard": {"period": 1, "repeats": 5}},
    "grammar": {"grammar": 'root ::= ("ab" | "cd") root | "."', "max_tokens": 12},
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_holds_under_speculation(client: httpx.Client, field: str) -> None:
    """Reported as settings that are dropped without a word as soon as there are drafts."""
    asked = {"prompt": PERIOD * 5, "logprobs": 2, **FIELDS[field]}
    patch(client, **PLAIN)
    plain = complete(client, **asked)
    assert plain["token_ids"] != complete(client, prompt=PERIOD * 5)["token_ids"], "the setting changes something"
    for kind, window in product(("draft-model", "ngram"), (1, 4, 9)):
        patch(client, **{**ALWAYS, "type": kind, "draft_tokens": window})
        assert complete(client, **asked) == plain, (kind, window)


@pytest.mark.parametrize("least", [1, 7, 20])
def test_min_tokens_counts_tokens_and_not_steps(client: httpx.Client, least: int) -> None:
    patch(client, **ALWAYS)
    willing = {"prompt": PERIOD * 3, "logit_bias": {"1019": 100}, "ignore_eos": False}
    choice = complete(client, min_tokens=least, max_tokens=40, **willing)
    assert choice["usage"]["completion_tokens"] == least + 1  # the end itself is a token
    assert choice["finish_reason"] == "stop"


# --- drafters over time ----------------------------------------------------------------------------------------------


def test_a_full_copy_is_accepted_whole(client: httpx.Client) -> None:
    patch(client, **ALWAYS)
    report = report_of(client, prompt=prompt_of(1), max_tokens=26)
    assert report["accepted_tokens"] == report["verified_tokens"] == 20
    assert report["steps"]["verify"] == 5, "each step gives the window and one more"


def test_a_busy_spell_costs_no_acceptance(drafting: Any, client: httpx.Client) -> None:
    """Reported as drafters that find their cache unwritten when they are alone again: nothing fails, nothing fits."""
    patch(client, **{**ALWAYS, "max_batch": 1})
    long = {"prompt": PERIOD * 6, "max_tokens": 160}
    expected = complete(client, **long)
    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(complete, client, **long, speculation={"report": True})
        side_by_side(drafting, [{"prompt": prompt_of(seed), "max_tokens": 10} for seed in range(4)])
        answer = alone.result()
    report = answer.pop("speculation")
    assert answer == expected
    assert report["verified_tokens"] > 20
    assert report["accepted_tokens"] == report["verified_tokens"]


def test_the_policy_may_change_at_any_step(drafting: Any, client: httpx.Client) -> None:
    """Windows of none, some and many, drafters and governors, in turns while requests join and leave."""
    bodies = [{"prompt": prompt_of(seed, 30) + PERIOD * 3, "max_tokens": 20 + seed * 4} for seed in range(8)]
    patch(client, **PLAIN)
    alone = [complete(client, **body) for body in bodies]
    dice = random.Random(4)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            crowd = pool.submit(side_by_side, drafting, bodies)
            while not crowd.done():
                name, values = dice.choice(
                    [
                        ("draft_tokens", [0, 1, 4, 16, None]),
                        ("type", ["auto", "ngram", "draft-model"]),
                        ("governor", ["off", "cost", "probe"]),
                        ("max_batch", [1, 3, 8]),
                        ("enabled", [True, True, False]),
                    ]
                )
                patch(client, **{name: dice.choice(values)})
            assert crowd.result() == alone


def test_a_chat_finds_its_prefix_again_with_a_drafter(client: httpx.Client) -> None:
    """Reported as prefix hits that halve with a drafter: its rejected rows, or blocks that it takes."""

    def chat(salt: str) -> list[int]:
        messages: list[dict[str, str]] = []
        cached: list[int] = []
        for turn in range(8):
            messages.append({"role": "user", "content": f"Question {turn}, and some words to fill a block or two."})
            body = {"messages": messages, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
            answer = client.post("/v1/chat/completions", json=body).json()
            usage = answer["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return cached

    patch(client, **PLAIN)
    plain = chat("plain")
    assert plain[0] == 0 and plain == sorted(plain) and plain[-1] > 200
    patch(client, **ALWAYS)
    assert chat("drafted") == plain


# --- what is counted -------------------------------------------------------------------------------------------------


def counted(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"surefoot_{name}"))


def test_times_between_tokens_count_tokens(client: httpx.Client) -> None:
    """Reported as latencies that look worse with speculation, as each step counted once however much it gave."""
    for policy in (PLAIN, ALWAYS):
        patch(client, **policy)
        before = counted(client, "inter_token_latency_seconds_count")
        complete(client, prompt=PERIOD, max_tokens=31)
        assert counted(client, "inter_token_latency_seconds_count") - before == 30


# --- limits, places, endings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 16])
def test_prompt_and_answer_at_the_cap(drafting: Any, client: httpx.Client, window: int) -> None:
    """Reported as requests that stop for ever where a window would pass the end of the context."""
    room = drafting.service.model.max_context
    for kind, short in product(("draft-model", "ngram"), (1, 2, 9)):
        patch(client, **{**ALWAYS, "type": kind, "draft_tokens": window})
        prompt = (PERIOD * room)[: room - short]
        choice = complete(client, prompt=prompt, max_tokens=short)
        assert (choice["usage"]["completion_tokens"], choice["finish_reason"]) == (short, "length")


def test_an_urgent_request_beside_a_full_server(
    drafting: Any, client: httpx.Client, eventually: Callable[..., bool]
) -> None:
    """Reported as a crash when a request is preempted for a more urgent one."""
    calm = [{"prompt": prompt_of(seed), "max_tokens": 400, "priority": 0} for seed in range(8)]
    urgent = {"prompt": prompt_of(99), "max_tokens": 8, "priority": -1}
    patch(client, **PLAIN)
    alone = [complete(client, **body) for body in (*calm, urgent)]
    for policy in (PLAIN, ALWAYS):
        patch(client, **policy)
        before = drafting.engine.state()["preemptions"]
        with ThreadPoolExecutor(1) as pool:
            crowd = pool.submit(side_by_side, drafting, calm)
            assert eventually(lambda: drafting.engine.state()["free_slots"] == 0)
            first = complete(client, **urgent)
            assert not crowd.done(), "it did not wait for them"
            assert [*crowd.result(), first] == alone
        assert drafting.engine.state()["preemptions"] > before


def test_clients_that_leave_with_the_first_chunk(
    drafting: Any, client: httpx.Client, eventually: Callable[..., bool]
) -> None:
    """Reported as an engine that falls over when a request vanishes between its draft and its verification."""
    patch(client, **ALWAYS)
    expected = complete(client, prompt=PERIOD, seed=1)
    body = {"prompt": PERIOD, "max_tokens": 300, "ignore_eos": True, "stream": True, "temperature": 0}
    for _ in range(50):
        with drafting.http() as leaving, leaving.stream("POST", "/v1/completions", json=body) as response:
            assert json.loads(next(response.iter_lines()).removeprefix("data: "))["choices"]
    assert eventually(lambda: drafting.engine.num_open == 0 and drafting.service.bridge.num_running == 0)
    assert all(states["held"] == 0 for states in drafting.engine.state()["kv_blocks"].values())
    assert complete(client, prompt=PERIOD, seed=1) == expected


def test_a_crowd_that_overflows_the_cache_gets_its_own_text(drafting: Any, client: httpx.Client) -> None:
    """Reported as answers from foreign blocks once the pool is full: evicted, preempted and reused meanwhile."""
    bodies = [{"prompt": prompt_of(seed, 250 + seed), "max_tokens": 150} for seed in range(10)]
    patch(client, **PLAIN)
    alone = [complete(client, **body, cache_salt="alone") for body in bodies]
    for policy in (PLAIN, ALWAYS):
        patch(client, **policy)
        before = drafting.engine.state()["preemptions"]
        for _ in range(2):
            assert side_by_side(drafting, bodies) == alone
        assert drafting.engine.state()["preemptions"] > before


# --- the prefix cache's reset ----------------------------------------------------------------------------------------


def reset(client: httpx.Client) -> dict[str, int]:
    answer = client.post("/admin/cache/reset")
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached_tokens(client: httpx.Client, prompt: list[int]) -> int:
    body = {"prompt": prompt, "max_tokens": 1}
    return client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_reset_says_what_it_did_and_did_it(drafting: Any, client: httpx.Client) -> None:
    """Reported as resets that answer 200 while every block stays where it is."""
    patch(client, **ALWAYS)
    prompt, resets = prompt_of(5, 200), counted(client, "prefix_cache_resets_total")
    complete(client, prompt=prompt)
    assert cached_tokens(client, prompt) == 192
    in_cache = sum(states["cached"] for states in drafting.engine.state()["kv_blocks"].values())
    answer = reset(client)
    assert answer["freed_blocks"] > in_cache >= 6, "the draft model's too"
    assert (answer["kept_blocks"], answer["cached_blocks"]) == (0, 0)
    assert all(states["cached"] == 0 for states in drafting.engine.state()["kv_blocks"].values())
    assert cached_tokens(client, prompt) == 0
    assert counted(client, "prefix_cache_resets_total") == resets + 1
    assert counted(client, "prefix_cache_reset_blocks_total") >= answer["freed_blocks"]


def test_a_reset_inside_a_stream_leaves_the_stream_alone(
    drafting: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, step = drafting.engine._core, drafting.engine._core.step

    def slowly() -> Any:
        time.sleep(0.01)  # else the answer is made before the first reset arrives
        return step()

    monkeypatch.setattr(core, "step", slowly)
    patch(client, **ALWAYS)
    prompt = prompt_of(6, 200)
    expected = complete(client, prompt=prompt, max_tokens=300)["token_ids"]
    reset(client)
    body = {"prompt": prompt, "max_tokens": 300, "ignore_eos": True, "stream": True, "temperature": 0}
    found: list[int] = []
    answers: list[dict[str, int]] = []
    with client.stream("POST", "/v1/completions", json={**body, "return_token_ids": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found += [token for c in json.loads(line[6:])["choices"] for token in c.get("token_ids") or ()]
                if len(found) > 20 * (len(answers) + 1) and len(answers) < 5:
                    with drafting.http() as other:
                        answers.append(reset(other))
                        assert len(answers) > 1 or cached_tokens(other, prompt) == 0
    assert found == expected
    assert answers[0]["kept_blocks"] >= 6, "those of the stream, which nobody else finds"
    assert all(answer["cached_blocks"] == 0 for answer in answers)
