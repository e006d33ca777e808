"""Structured output from the real engine with a model of random weights: only the grammar makes its answers valid."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-f]{1,8}$"},
        "status": {"enum": ["waiting", "done"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
    },
    "required": ["name", "status", "sizes"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def post(live: Any, **fields: Any) -> dict[str, Any]:
    body = {"prompt": [5, 6, 7], "max_tokens": 200, "seed": 3, "return_token_ids": True, **fields}
    with live.http() as http:
        response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def only(live: Any, **fields: Any) -> dict[str, Any]:
    return post(live, **fields)["choices"][0]


def metric(live: Any, name: str) -> float:
    with live.http() as http:
        found = re.findall(rf"^surefoot_{name}(?:{{[^}}]*}})? (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def valid(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "status", "sizes"] and re.fullmatch("[a-f]{1,8}", value["name"]) is not None


@pytest.mark.parametrize("temperature", [0, 0.7, 2])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_valid_and_the_same_with_and_without_drafts(real: Any, seed: int, temperature: float) -> None:
    fields = {"response_format": FORMAT, "temperature": temperature, "seed": seed, "logprobs": 2}
    drafted = only(real, **fields)
    plain = only(real, speculation={"enabled": False}, **fields)
    assert drafted["finish_reason"] == "stop" and valid(drafted["text"])
    assert {**drafted, "speculation": None} == {**plain, "speculation": None}


def test_with_a_draft_model(drafting: Any) -> None:
    """The drafter is the model itself and draws under the same masks: all it drafts is right."""
    with drafting.http() as http:
        http.patch("/admin/speculation", json={"type": "draft-model", "governor": "off", "draft_tokens": 5})
    for seed in range(4):
        fields = {"response_format": FORMAT, "temperature": 1, "seed": seed, "logprobs": 1}
        drafted = only(drafting, speculation={"report": True}, **fields)
        report = drafted.pop("speculation")
        assert valid(drafted["text"])
        assert drafted == only(drafting, speculation={"enabled": False}, **fields)
        assert report["accepted_tokens"] > 5
        lost = report["verified_tokens"] - report["accepted_tokens"] - report["prescribed_tokens"]
        assert lost in (0, 1), "the answer's last token is drawn, never drafted"


def test_prescribed_tokens_and_grammars_are_counted(real: Any) -> None:
    wanted = {"structured_outputs": {"regex": "[ab] a text that is prescribed from here to its end [ab]"}}
    before = {
        name: metric(real, name)
        for name in ("grammar_prescribed_tokens_total", "grammar_requests_total", "grammar_compilations_total")
    }
    accepted = metric(real, "spec_accepted_tokens_total")
    one, two = only(real, **wanted), only(real, speculation={"enabled": False}, **wanted)
    assert one == two
    taken = metric(real, "grammar_prescribed_tokens_total") - before["grammar_prescribed_tokens_total"]
    assert len(one["token_ids"]) - 8 < taken < len(one["token_ids"])
    assert metric(real, "grammar_requests_total") - before["grammar_requests_total"] == 2
    assert metric(real, "grammar_compilations_total") - before["grammar_compilations_total"] == 1
    assert metric(real, "spec_accepted_tokens_total") == accepted


def test_choices_are_valid_each(real: Any) -> None:
    choices = post(real, response_format=FORMAT, n=4, temperature=1.5)["choices"]
    assert all(valid(choice["text"]) for choice in choices)
    assert len({choice["text"] for choice in choices}) > 1


def test_a_stream_adds_up(real: Any) -> None:
    whole = only(real, response_format=FORMAT)
    with real.http() as http:
        body = {"prompt": [5, 6, 7], "max_tokens": 200, "seed": 3, "stream": True, "response_format": FORMAT}
        lines = http.post("/v1/completions", json=body).text.split("\n\n")
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")]
    assert "".join(texts) == whole["text"]


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_a_limit_cuts(real: Any, limit: int) -> None:
    whole, cut = only(real, response_format=FORMAT), only(real, response_format=FORMAT, max_tokens=limit)
    assert (cut["finish_reason"], cut["token_ids"]) == ("length", whole["token_ids"][:limit])


def test_a_stop_string_ends(real: Any) -> None:
    stopped = only(real, response_format=FORMAT, stop=['"status"'])
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", '"status"')
    assert '"status"' not in stopped["text"]


def test_a_complete_answer_ends_before_min_tokens(real: Any) -> None:
    answer = only(real, response_format=FORMAT, min_tokens=190)
    assert valid(answer["text"]) and len(answer["token_ids"]) < 190


def test_ignore_eos_ends_where_nothing_may_follow(real: Any) -> None:
    assert valid(only(real, response_format=FORMAT, ignore_eos=True)["text"])


def test_a_bias_chooses_among_what_is_allowed(real: Any) -> None:
    """The mask has the last word: a bias on a forbidden token does nothing, one on allowed tokens does."""
    choice = {"structured_outputs": {"choice": ["aa", "bb"]}, "temperature": 0}
    free = only(real, **choice)
    with real.http() as http:
        letters = {text: http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
                   for text in ("aa", "bb", "z")}  # fmt: skip
    other = "bb" if free["text"] == "aa" else "aa"
    biased = only(real, logit_bias={str(letters[other][0]): 100, str(letters["z"][0]): 100}, **choice)
    assert biased["text"] == other
    assert only(real, logit_bias={str(letters["z"][0]): 100}, **choice)["text"] == free["text"]


def test_a_ban_chooses_among_what_is_allowed_and_forbids_nothing_that_is_prescribed(real: Any) -> None:
    """A grammar is kept whatever is banned: its answer ends although its end is, and one of its choices is made."""
    choice = {"structured_outputs": {"choice": ["aa", "bb"]}, "temperature": 100, "ignore_eos": False}
    with real.http() as http:
        letters = {text: http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
                   for text in ("a", "aa", "b", "bb")}  # fmt: skip
    banned = {text: {str(letters[text][0]): -100, str(letters[text * 2][0]): -100} for text in "ab"}
    end = {"1019": -100, "2": -100}
    for seed in range(5):
        assert only(real, logit_bias={**banned["a"], **end}, seed=seed, **choice)["text"] == "bb"
        assert only(real, logit_bias={**banned["b"], **end}, seed=seed, **choice)["text"] == "aa"
    both = {only(real, logit_bias={**banned["a"], **banned["b"], **end}, seed=s, **choice)["text"] for s in range(12)}
    assert both == {"aa", "bb"}


def test_log_probabilities_are_those_of_the_raw_rows(real: Any) -> None:
    """Drawn under a mask, judged without it: the best alternatives may be forbidden ones."""
    answer = only(real, response_format=FORMAT, logprobs=3, temperature=0)
    judged = answer["logprobs"]
    assert len(judged["tokens"]) == len(answer["token_ids"])
    rows = zip(judged["tokens"], judged["top_logprobs"], strict=True)
    assert any(top[token] < max(top.values()) for token, top in rows)
    assert all(value <= 0 for value in judged["token_logprobs"])


def test_one_of_two_that_fails_harms_the_other_in_nothing(real: Any) -> None:
    """Ambiguous beyond measure once its beginning is written."""
    rules = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(30))
    bad = {"grammar": f'start: /[xy]{{20}}/ r0\n{rules}\nr30: "a"'}
    with real.http() as http:
        response = http.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 99, "structured_outputs": bad})
    assert response.status_code == 400
    assert response.json()["error"]["code"] in ("grammar_too_complex", "invalid_constraint")
    assert valid(only(real, response_format=FORMAT)["text"])
