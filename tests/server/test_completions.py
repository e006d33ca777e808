"""Text completions: prompt shapes, echo, log-probabilities, many prompts at once."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "abc", "max_tokens": 5, **fields}


def chunks_of(response: Any) -> list[Any]:
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def test_text_prompt_gets_special_tokens_and_ids_do_not(start: Any) -> None:
    live = start()
    with live.client() as client:
        text = client.completions.create(**ask())
        ids = client.completions.create(**ask(prompt=[97, 98]))
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("Hello", "length")
    assert [list(submission.prompt_ids) for submission in live.engine.submissions] == [[256, 97, 98, 99], [97, 98]]
    assert ids.usage.prompt_tokens == 2


def test_max_tokens_defaults_to_16(start: Any) -> None:
    live = start()
    with live.client() as client:
        client.completions.create(model="tiny", prompt="x")
    assert live.engine.submissions[0].params.max_tokens == 16


def test_many_prompts_times_n(start: Any, script: Any) -> None:
    live = start(
        script(text=lambda submission: bytes(submission.prompt_ids) + b":" + str(submission.params.seed).encode())
    )
    body = ask(prompt=[[97], [98]], n=2, seed=1, max_tokens=40)
    with live.client() as client:
        whole = client.completions.create(**body)
        streamed: dict[int, str] = {}
        for chunk in client.completions.create(**body, stream=True):
            choice = chunk.choices[0]
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
        solo = client.completions.create(**{**body, "prompt": [98]})
    texts = [choice.text for choice in whole.choices]
    assert [text[0] for text in texts] == ["a", "a", "b", "b"]
    assert [text[1:] for text in texts[:2]] == [
        text[1:] for text in texts[2:]
    ]  # a prompt's seeds ignore its neighbours
    assert texts[0] != texts[1]
    assert [streamed[index] for index in range(4)] == texts
    assert [choice.text for choice in solo.choices] == texts[2:]
    assert whole.usage.prompt_tokens == 2  # once per prompt, not per choice


def test_echo_with_logprobs_and_no_new_token(start: Any) -> None:
    with start().client() as client:
        choice = client.completions.create(**ask(echo=True, max_tokens=0, logprobs=1, prompt=[97, 98, 99])).choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1] == -0.1 - 98 / 1000
    assert choice.logprobs.top_logprobs[1] == {"a": -0.1 - 97 / 1000, "b": -0.1 - 98 / 1000}
    assert choice.logprobs.text_offset == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_comes_first_and_offsets_run_on(start: Any, stream: bool) -> None:
    with start().client() as client:
        answer = client.completions.create(**ask(echo=True, logprobs=0, stream=stream, prompt=[207, 128, 97]))
        parts = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(part.text for part in parts) == "πaHello"
    offsets = [offset for part in parts for offset in part.logprobs.text_offset]
    assert offsets == [0, 0, 1, 2, 3, 4, 5, 6]
    assert parts[0].logprobs.tokens[:3] == ["bytes:\\xcf", "bytes:\\x80", "a"]


def test_the_drawn_token_is_always_among_the_top(start: Any) -> None:
    with start().client() as client:
        logprobs = client.completions.create(**ask(logprobs=2)).choices[0].logprobs
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob
        assert {"a", "b"} <= set(top)


def test_token_ids(start: Any) -> None:
    with start().http() as http:
        body = ask(return_token_ids=True, stop="lo")
        whole = http.post("/v1/completions", json=body).json()["choices"][0]
        parts = [
            chunk["choices"][0] for chunk in chunks_of(http.post("/v1/completions", json={**body, "stream": True}))
        ]
    assert whole["prompt_token_ids"] == [256, 97, 98, 99]
    assert bytes(whole["token_ids"]) == b"Hel"
    assert [part for part in parts if "prompt_token_ids" in part] == parts[:1]
    assert [token for part in parts for token in part["token_ids"]] == list(b"Hel")


def test_prompt_may_end_inside_a_character(start: Any, script: Any) -> None:
    pepper = "🌶".encode()
    live = start(script(text=lambda _: b"!"))
    with live.client() as client:
        answer = client.completions.create(**ask(prompt=list(b"Hello world " + pepper[:2]), stream=True))
        text = "".join(chunk.choices[0].text for chunk in answer)
    assert text == "!"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"best_of": 2}, "best_of"), ({"suffix": "x", "echo": True}, "echo"), ({"logprobs": True}, "logprobs")],
)
def test_what_is_not_supported_is_refused(start: Any, fields: Any, param: str) -> None:
    with start().client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**ask(**fields))
    assert caught.value.param == param


def test_best_of_n_is_no_request(start: Any) -> None:
    with start().client() as client:
        assert len(client.completions.create(**ask(n=2, best_of=2)).choices) == 2


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, "a"], [-1], [300], [[1], 2], {"a": 1}, None, 7, [True]])
def test_unusable_prompts(start: Any, prompt: Any) -> None:
    with start().http() as http:
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    if prompt == "":
        assert answer.status_code == 200  # the begin-of-text token alone
        return
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_usage_counts_cached_tokens_of_the_first_choice(start: Any) -> None:
    with start().client() as client:
        usage = client.completions.create(**ask(prompt=[97] * 70, n=3)).usage
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (70, 64)
    assert usage.completion_tokens == 15


@pytest.mark.parametrize(("prompt", "inside"), [("ab", [97, 98]), ([9, 8], [9, 8]), ("", [])])
def test_a_suffix_asks_for_what_stands_before_it(start: Any, prompt: Any, inside: list[int]) -> None:
    live = start()
    with live.client() as client:
        answer = client.completions.create(**ask(prompt=prompt, suffix="c", n=2))
    for submission in live.engine.submissions:
        assert list(submission.prompt_ids) == [256, 1, *inside, 2, 99, 3]
    assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]
    assert answer.usage.prompt_tokens == len(inside) + 5


def test_an_empty_suffix_is_none(start: Any) -> None:
    live = start()
    with live.client() as client:
        client.completions.create(**ask(suffix=""))
    assert list(live.engine.submissions[0].prompt_ids) == [256, 97, 98, 99]


def test_a_gap_that_does_not_fit_is_refused(start: Any) -> None:
    with start(max_context=32).client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**ask(prompt="a" * 20, suffix="b" * 20))
    assert caught.value.code == "context_length_exceeded"


def test_a_model_without_the_markers_refuses_a_suffix(real: Any) -> None:
    with real.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=client.models.list().data[0].id, prompt="a", suffix="b")
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")
    assert "fill-in-the-middle" in caught.value.message


PEPPER = "🌶".encode()


def text_and_offsets(live: Any, **fields: Any) -> tuple[str, list[int], list[str]]:
    """Of a streamed answer, which equals the whole one."""
    with live.client() as client:
        whole = client.completions.create(**ask(logprobs=0, max_tokens=9, **fields)).choices[0]
        parts = [
            chunk.choices[0]
            for chunk in client.completions.create(**ask(logprobs=0, max_tokens=9, **fields), stream=True)
        ]
    assert "".join(part.text for part in parts) == whole.text
    assert [offset for part in parts for offset in part.logprobs.text_offset] == whole.logprobs.text_offset
    return whole.text, whole.logprobs.text_offset, whole.logprobs.tokens


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_offsets_after_a_prompt_that_ends_inside_a_character(start: Any, script: Any, echo: bool, cut: int) -> None:
    """The answer completes the character: it is its first one, and is there once."""
    live = start(script(text=lambda _: PEPPER[cut:] + b"ab", max_step=1))
    text, offsets, tokens = text_and_offsets(live, prompt=[104, *PEPPER[:cut]], echo=echo)
    assert text == "h" * echo + "🌶ab"
    expected = [0] * (4 - cut) + [1, 2]
    if echo:
        expected = [0] + [1] * 4 + [2, 3]
    assert offsets == expected
    assert [text[offset] for offset, token in zip(offsets, tokens, strict=True) if token in "hab"] == ["h"] * echo + [
        "a",
        "b",
    ]


@pytest.mark.parametrize("answer", [b"xy", b"", PEPPER])
def test_a_character_that_nothing_completes_is_replaced_in_an_echo(start: Any, script: Any, answer: bytes) -> None:
    live = start(script(text=lambda _: answer, max_step=1))
    text, offsets, _ = text_and_offsets(live, prompt=[104, *PEPPER[:2]], echo=True)
    assert text == "h\ufffd" + answer.decode()
    assert offsets == [0, 1, 1] + ([2, 3] if answer == b"xy" else [2] * len(answer))
    text, offsets, _ = text_and_offsets(live, prompt=[104, *PEPPER[:2]])
    assert text == answer.decode()  # without echo the broken bytes are the prompt's affair
    assert offsets == ([0, 1] if answer == b"xy" else [0] * len(answer))


def test_an_echo_of_a_cut_prompt_and_no_answer(start: Any) -> None:
    with start().client() as client:
        choice = client.completions.create(**ask(echo=True, max_tokens=0, prompt=[104, *PEPPER[:2]])).choices[0]
    assert choice.text == "h\ufffd"


def test_an_answer_that_ends_inside_a_character_shows_a_replacement(start: Any, script: Any) -> None:
    """Text is the decoded tokens, also where max_tokens cuts a character."""
    live = start(script(text=lambda _: b"a" + PEPPER, max_step=1))
    with live.client() as client:
        choice = client.completions.create(**ask(max_tokens=3)).choices[0]
    assert (choice.text, choice.finish_reason) == ("a\ufffd", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs(start: Any, stream: bool) -> None:
    with start().http() as http:
        body = ask(prompt=[97, 120, 121], prompt_logprobs=2, max_tokens=1, stream=stream)
        response = http.post("/v1/completions", json=body)
    choices = [chunk["choices"][0] for chunk in chunks_of(response)] if stream else response.json()["choices"]
    first, second, third = choices[0]["prompt_logprobs"]
    assert first is None
    assert second == {
        "97": {"logprob": -0.1 - 97 / 1000, "rank": 1, "decoded_token": "a"},
        "98": {"logprob": -0.1 - 98 / 1000, "rank": 2, "decoded_token": "b"},
        "120": {"logprob": -0.1 - 120 / 1000, "rank": None, "decoded_token": "x"},
    }
    assert set(third) == {"97", "98", "121"}
    assert all("prompt_logprobs" not in choice for choice in choices[1:])


def test_prompt_logprobs_beside_an_echo(start: Any) -> None:
    """Each shows as many alternatives as it was asked for."""
    with start().http() as http:
        body = ask(prompt=[97, 120], echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1)
        choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert set(choice["logprobs"]["top_logprobs"][1]) == {"a", "x"}
    assert set(choice["prompt_logprobs"][1]) == {"97", "98", "99", "120"}
