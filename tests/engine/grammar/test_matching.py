"""Masks, windows, rollback and ends, over answers drawn at random from what is allowed: any valid answer is proof."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache

import jsonschema_rs
import numpy as np
import pytest
from grammar_cases import END, PERSON, PieceTokenizer, allowed, compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint, ConstraintKind
from surefoot.engine.grammar.matcher import Grammar, Matcher
from surefoot.kernels.errors import RequestError

TOKENIZER = PieceTokenizer()
PADDED = TOKENIZER.vocab_size + 37  # a logits row wider than the vocabulary, and no multiple of 32


@cache
def grammars() -> Grammars:
    return Grammars(TOKENIZER, PADDED)


@cache
def grammar(constraint: Constraint) -> Grammar:
    return compiled(constraint, grammars())


def draw(matcher: Matcher, rng: random.Random, ends: float = 0.3) -> int:
    """A token that the mask allows. The end is likelier than chance makes it, so that answers stay short."""
    (mask,) = matcher.masks_for()
    ids = allowed(mask)
    assert max(ids) < TOKENIZER.vocab_size, "an id that no token has"
    if END in ids and (len(ids) == 1 or rng.random() < ends):
        return END
    likely = [token for token in ids if TOKENIZER.text([token])[:1] in '"}],' and token > END]
    return rng.choice(likely if likely and rng.random() < 0.3 else [token for token in ids if token != END])


def answer(constraint: Constraint, seed: int, *, may_end: bool = True, limit: int = 300) -> tuple[list[int], bool]:
    """Token ids without the end, and whether the answer came to its end."""
    rng = random.Random(seed)
    matcher = grammar(constraint).start(may_end=may_end)
    ids: list[int] = []
    while len(ids) < limit:
        token = draw(matcher, rng)
        matcher.commit([token])
        if token == END:
            assert may_end
            return ids, True
        ids.append(token)
        if matcher.complete:
            return ids, True
    return ids, False


def schema(value: object) -> Constraint:
    return Constraint.json_schema(value, "response_format")


def valid_for(value: object) -> Callable[[str], bool]:
    validator = jsonschema_rs.validator_for(value)  # type: ignore[arg-type]
    return lambda text: validator.is_valid(json.loads(text))


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


LINKED = {"$ref": "#/$defs/node", "$defs": {"node": {**PERSON, "properties": {"next": {"$ref": "#/$defs/node"}}}}}
LINKED["$defs"]["node"]["required"] = []  # type: ignore[index]

SCHEMAS: dict[str, object] = {
    "person": PERSON,
    "enum": {"enum": [1, "one", None, {"a": [True]}]},
    "const": {"const": {"kind": "x", "n": [1, 2.5, "é"]}},
    "numbers": {
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": -3, "maximum": 1000},
        "minItems": 2,
        "maxItems": 5,
    },
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 3}, {"type": "boolean"}],
        "items": False,
    },
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"},
    "any of": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 4}, {"type": "array", "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": k}, "v": v}, "required": ["k", "v"]}
            for k, v in (("a", {"type": "integer"}), ("b", {"type": "boolean"}))
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "patterns": {"type": "object", "patternProperties": {"^x[a-z]$": {"type": "null"}}, "additionalProperties": False},
    "recursive": LINKED,
    "types": {"type": ["integer", "null", "boolean"]},
    "nothing said": {"title": "T", "description": "d", "default": 1, "examples": [2], "deprecated": True},
    "undefined format": {"type": "string", "format": "password", "maxLength": 3},
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "null"}],
        "additionalItems": False,
        "minItems": 2,
    },
}

THOUGHT = 'start: before @answer\nbefore: thought /\\n{0,2}/\nthought[lazy]: /(?s:.*)/ "</think>"'

FORMATS = {  # the shape only: a regular language knows no 29th of February
    "date": r"\d{4}-\d\d-\d\d",
    "date-time": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"\d+(\.\d+){3}",
    "email": r"[^@\s]+@[^@\s]+",
}

TEXTS: dict[str, tuple[Constraint, Callable[[str], object]]] = {
    **{name: (schema(value), valid_for(value)) for name, value in SCHEMAS.items()},
    "formats": (schema({"type": "array", "prefixItems": [{"type": "string", "format": name} for name in FORMATS],
                        "minItems": len(FORMATS), "items": False}),
                lambda text: all(map(re.fullmatch, FORMATS.values(), json.loads(text)))),
    "object": (Constraint.json_object("p"), is_object),
    "anything": (schema(True), lambda text: (json.loads(text), True)[1]),
    "regex": (Constraint.regex(r"(ab|c)+[0-9]{2,4}é?", "p"), re.compile(r"(ab|c)+[0-9]{2,4}é?").fullmatch),
    "anchors": (Constraint.regex("^a+$", "p"), re.compile("a+").fullmatch),
    "slash": (Constraint.regex('a/b"\\n', "p"), re.compile('a/b"\n').fullmatch),
    "empty": (Constraint.regex("", "p"), lambda text: text == ""),
    "choice": (Constraint.choice(["yes", "no", "ye", 'a"b\\c\nd', "é/x", ""], "p"), {
        "yes", "no", "ye", 'a"b\\c\nd', "é/x", ""}.__contains__),
    "lark": (Constraint.lark('start: item ("," item)*\nitem: /[a-c]{1,3}/ | "(" start ")"', "p"),
             re.compile(r"[a-c,()]+").fullmatch),
    "control token": (Constraint.lark('start: "ab" <|tool|> /[0-9]/', "p"), re.compile("ab[0-9]").fullmatch),
    "after": (Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(PERSON), "p", THOUGHT),
              lambda text: valid_for(PERSON)(text.split("</think>", 1)[1])),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_random_answers_are_valid(name: str) -> None:
    constraint, valid = TEXTS[name]
    ended = 0
    for seed in range(12):
        ids, end = answer(constraint, seed)
        if end:
            ended += 1
            text = b"".join(TOKENIZER.token_bytes(token) for token in ids).decode()  # strict: whole characters only
            assert valid(text), text
    assert ended >= 3


@pytest.mark.parametrize("name", TEXTS)
def test_windows_are_single_steps(name: str) -> None:
    """By bits: each row of a window is the mask after its drafts; forbidden and last tokens end the window."""
    constraint, _ = TEXTS[name]
    rng = random.Random(name)
    for seed in range(6):
        ids, end = answer(constraint, seed, limit=60)
        matcher, plain = grammar(constraint).start(), grammar(constraint).start()
        at = 0
        while at < len(ids):
            drafts = ids[at : at + rng.randrange(9)]
            if rng.random() < 0.5:
                drafts = [*drafts, rng.randrange(PADDED), *ids[at : at + 2]]
            window = matcher.masks_for(drafts).copy()
            behind = matcher.mask_after(drafts)
            assert (behind is None) == (len(window) <= len(drafts))
            assert behind is None or np.array_equal(behind, window[-1])
            assert np.array_equal(window, matcher.masks_for(drafts)), "the state moved"
            kept = rng.randrange(len(window))
            for row, token in enumerate([*drafts[: len(window) - 1], None]):
                assert np.array_equal(window[row], plain.masks_for()[0])
                if token is not None and row < kept:
                    plain.commit([token])
                elif row == kept:
                    break
            if len(window) <= len(drafts):
                check_cut(constraint, [*ids[:at], *drafts[: len(window) - 1]], drafts[len(window) - 1], window[-1])
            matcher.commit(drafts[:kept])
            at += kept
            if drafts[:kept] != ids[at - kept : at]:
                break
            if not kept:
                matcher.commit([ids[at]])
                plain.commit([ids[at]])
                at += 1
        if at == len(ids) and end:
            assert matcher.complete == plain.complete


def check_cut(constraint: Constraint, before: list[int], draft: int, mask: np.ndarray) -> None:
    """The draft that a window ended before is forbidden, or would have ended the answer."""
    if draft not in allowed(mask) or draft == END:
        return
    matcher = grammar(constraint).start()
    matcher.commit([*before, draft])
    assert matcher.complete


@pytest.mark.parametrize("name", TEXTS)
def test_prescribed_tokens_are_the_only_ones(name: str) -> None:
    constraint, _ = TEXTS[name]
    seen = 0
    for seed in range(4):
        ids, _ = answer(constraint, seed, limit=60)
        matcher = grammar(constraint).start()
        for token in ids:
            forced = matcher.forced_drafts(64)
            assert matcher.forced_drafts(1) == forced[:1]
            window = matcher.masks_for(forced)
            assert len(window) >= len(forced)  # only the answer's last token may be left out
            assert [allowed(row) for row in window[: len(forced)]] == [[token] for token in forced]
            seen += len(forced)
            matcher.commit([token])
    if name in ("person", "const"):
        assert seen > 10


def test_the_end_is_allowed_exactly_where_the_grammar_accepts() -> None:
    matcher = grammar(Constraint.regex("a{2}b*", "p")).start()
    accepted: list[bool] = []
    for letter in b"aab":
        accepted.append(END in allowed(matcher.masks_for()[0]))
        matcher.commit([4 + letter])
    accepted.append(END in allowed(matcher.masks_for()[0]))
    assert accepted == [False, False, True, True] and not matcher.complete


def test_a_complete_answer_needs_no_end_token() -> None:
    matcher = grammar(Constraint.regex("ab", "p")).start()
    matcher.commit(TOKENIZER.encode_inside("ab"))
    assert matcher.complete


def test_ignore_eos_forbids_the_end_until_nothing_else_is_left() -> None:
    constraint = Constraint.regex("a{3,6}", "p")
    for seed in range(8):
        ids, end = answer(constraint, seed, may_end=False)
        assert end and TOKENIZER.text(ids) == "a" * 6
    matcher = grammar(constraint).start(may_end=False)
    assert not any(END in allowed(row) for row in matcher.masks_for([4 + ord("a")] * 5))


def test_answers_do_not_meet() -> None:
    """Answers of one grammar share a lexer; each gets the masks that it would get alone."""
    constraint = schema(PERSON)
    alone = [answer(constraint, seed, limit=40)[0] for seed in range(6)]
    matchers = [grammar(constraint).start() for _ in alone]
    for step in range(40):
        for ids, matcher in zip(alone, matchers, strict=True):
            if step < len(ids):
                assert ids[step] in allowed(matcher.masks_for(ids[step : step + 3])[0])
                matcher.commit([ids[step]])


def doubling() -> Matcher:
    """Thirty rules that double: 2**30 prescribed letters, found only when the sixtieth letter is written."""
    rules = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(30))
    return grammar(Constraint.lark(f'start: /[xy]{{60}}/ r0\n{rules}\nr30: "a"', "structured_outputs")).start()


def test_a_fault_in_drafts_ends_looking_ahead_and_not_the_answer() -> None:
    matcher, letter = doubling(), 4 + ord("x")
    matcher.commit([letter] * 57)
    assert len(matcher.masks_for([letter, letter])) > 1 and matcher.mask_after([letter]) is not None
    assert len(matcher.masks_for([letter] * 8)) < 5
    for _ in range(2):
        (mask,) = matcher.masks_for([letter])
        assert letter in allowed(mask) and matcher.mask_after([letter]) is None
        matcher.commit([letter])


def test_a_grammar_that_becomes_too_complex_ends_its_answer() -> None:
    matcher = doubling()
    with pytest.raises(RequestError, match="Too many items") as caught:
        for _ in range(61):
            matcher.masks_for()
            matcher.commit([4 + ord("x")])
    assert (caught.value.param, caught.value.code) == ("structured_outputs", "grammar_too_complex")
    assert "<" not in caught.value.message


def test_a_slow_grammar_ends_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(n) for n in range(100))
    monkeypatch.setattr("surefoot.engine.grammar.matching.time.thread_time", lambda: next(clock))
    matcher = grammar(schema(PERSON)).start()
    with pytest.raises(RequestError, match="too long"):
        for _ in range(4):
            matcher.masks_for()


def test_drafts_outside_the_vocabulary_end_a_window() -> None:
    matcher = grammar(Constraint.regex("a*", "p")).start()
    for draft in (-1, PADDED, PADDED - 1, 2**31, END, 0):
        assert len(matcher.masks_for([4 + ord("a"), draft, 4 + ord("a")])) == 2
    matcher.commit([4 + ord("a")])


@pytest.mark.parametrize("extra", range(0, 40, 3))
def test_every_width_of_a_row(extra: int) -> None:
    """Bits beyond the vocabulary, padding ids included, are never set; all below may be."""
    size = TOKENIZER.vocab_size + extra
    wide = compiled(Constraint.regex("(?s:.)*", "p"), Grammars(TOKENIZER, size)).start()
    (mask,) = wide.masks_for()
    ids = allowed(mask)
    assert mask.shape == (-(-size // 32),)
    assert set(range(4, 4 + 128)) | {END} <= set(ids) < set(range(TOKENIZER.vocab_size))
    assert not {0, 1, 2} & set(ids), "a control token is no text"


# --- properties over schemas -----------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "name", "é", 'q"q', "x y"])
leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
              st.integers(-50, 50), st.integers(0, 300)),
    st.builds(lambda low, size: {"type": "number", "minimum": low, "maximum": low + size},
              st.integers(-5, 5), st.integers(0, 9)),
    st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
              st.integers(0, 3), st.integers(0, 4)),
    st.builds(lambda values: {"enum": values},
              st.lists(st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.text("aé\"\\\n😀", max_size=4)),
                       min_size=1, max_size=4)),
)  # fmt: skip


def nested(children: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    def make_object(properties: dict[str, object], keep: int) -> dict[str, object]:
        required = [name for number, name in enumerate(properties) if keep >> number & 1]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def make_array(items: dict[str, object], low: int, size: int) -> dict[str, object]:
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + size}

    return st.one_of(
        st.builds(make_object, st.dictionaries(names, children, max_size=3), st.integers(0, 7)),
        st.builds(make_array, children, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda options: {"anyOf": options}, st.lists(children, min_size=1, max_size=3)),
    )


@given(st.recursive(leaves, nested, max_leaves=6), st.integers(0, 2**20))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schema(value: dict[str, object], seed: int) -> None:
    constraint = schema(value)
    ids, end = answer(constraint, seed, limit=400)
    if end:
        assert valid_for(value)(TOKENIZER.text(ids))
    plain, windows, at = grammar(constraint).start(), grammar(constraint).start(), 0
    rng = random.Random(seed)
    while at < len(ids):
        drafts = ids[at : at + 1 + rng.randrange(6)]
        for row, token in zip(windows.masks_for(drafts), drafts, strict=False):
            assert np.array_equal(row, plain.masks_for()[0])
            plain.commit([token])
        windows.commit(drafts)
        at += len(drafts)
