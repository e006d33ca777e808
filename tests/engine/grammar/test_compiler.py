"""Compiling: what is refused and why, once per text, off the caller's thread, and hostile constraints within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from grammar_cases import PERSON, PieceTokenizer, compiled
from prometheus_client import CollectorRegistry

from surefoot.engine.grammar import compiler, source
from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint, ConstraintKind
from surefoot.engine.grammar.json_schema import enforceable, json_rule
from surefoot.engine.grammar.metrics import GrammarMetrics
from surefoot.kernels.errors import RequestError

TOKENIZER = PieceTokenizer()


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENIZER.vocab_size)


def schema(value: object) -> Constraint:
    return Constraint.json_schema(value, "response_format")


REFUSED: list[tuple[Constraint, str]] = [
    (schema({"type": "not-a-type"}), "not-a-type"),
    (schema({"type": 3}), ""),
    (schema(False), "not"),
    (schema([1]), "object or a boolean"),
    (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (schema({"not": {"type": "string"}}), "not"),
    (schema({"if": {}, "then": {}}), "if"),
    (schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf"),
    (schema({"$ref": "http://example.org/schema"}), "example.org"),
    (schema({"$ref": "#/$defs/none"}), "none"),
    (schema({"$ref": "#"}), "without an end"),
    (schema({"enum": []}), "empty"),
    (schema({"type": "integer", "minimum": 2, "maximum": 1}), "minimum"),
    (schema({"type": "object", "required": ["a"], "additionalProperties": False}), "'a'"),
    (schema({"type": "string", "pattern": "("}), "unclosed"),
    (schema({"type": "string", "pattern": "a(?=b)"}), "look-around"),
    (schema({"type": "string", "format": "uri-reference"}), "uri-reference"),
    (schema({"type": "object", "properties": {"a": {"type": "bad"}}}), "bad"),
    (schema({"not": {}, "x-guidance": {"lenient": True}}), "not"),
    (Constraint(ConstraintKind.JSON_SCHEMA, "{", "p"), ""),
    (Constraint.regex("(", "p"), "p: no regular expression: unclosed group"),
    (
        Constraint.lark('start: "a"\n  | /[a-/', "p"),
        "line 1, column 8: no regular expression: unclosed character class",
    ),
    (Constraint.regex(r"(a)\1", "p"), "backreferences"),
    (Constraint.choice([], "p"), "choices"),
    (Constraint.lark("", "p"), "start"),
    (Constraint.lark("start: missing", "p"), 'p: line 1, column 8: unknown name: "missing"'),
    (Constraint.lark('start: "a', "p"), "p: line 1, column 10: an unclosed text"),
    (Constraint.lark('start: A\nA "b"', "p"), "p: line 2, column 3: Expected token ':', found \"string...\""),
    (Constraint.lark("start: <|nothing|>", "p"), "line 1, column 8: unknown special token"),
    (Constraint.lark('start: %json {"not": {}}', "p"), "line 1, column 8: no grammar can express its keywords 'not'"),
    (Constraint.lark("start: x\nx[max_tokens=3]: /[a-z]*/", "p"), "max_tokens"),
    (Constraint.lark("start: x\nx[capture, temperature=0.5]: /[a-z]*/", "p"), "temperature"),
    (Constraint.regex("a" * (source.MAX_TEXT + 1), "p"), "characters"),
]


@pytest.mark.parametrize(("constraint", "words"), REFUSED, ids=[c.text[:50] for c, _ in REFUSED])
def test_unusable_constraints_say_why(grammars: Grammars, constraint: Constraint, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(constraint, grammars)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, constraint.param, "invalid_constraint")
    assert error.message.startswith(f"{constraint.param}: ") and words in error.message
    assert len(error.message) < 400 and "\n" not in error.message


def test_slow_masks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_SLOW_MASK_SECONDS", -1.0)
    with pytest.raises(RequestError, match="p: finding the tokens that it allows takes too long"):
        compiled(Constraint.regex("slow[0-9]", "p"), Grammars(TOKENIZER, TOKENIZER.vocab_size))


def test_what_cannot_be_taken_back_is_refused(grammars: Grammars) -> None:
    class OneWay:
        """A matcher that only goes forward."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def rollback(self, count: int) -> bool:
            return False

    known: Any = compiled(Constraint.regex("back[0-9]", "p"), grammars)
    compiler._try_out(known.initial.deep_copy(), known.vocabulary)
    with pytest.raises(ValueError, match="cannot be taken back"):
        compiler._try_out(OneWay(known.initial.deep_copy()), known.vocabulary)  # type: ignore[arg-type]


def test_a_text_is_compiled_once(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Constraint] = []
    original = compiler._compiled

    def counted(*arguments: object) -> object:
        calls.append(arguments[1])  # type: ignore[arg-type]
        time.sleep(0.05)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "_compiled", counted)
    one, other = Constraint.regex("once[0-9]", "a"), Constraint.regex("once[0-9]", "b")
    futures = [grammars.compile(constraint) for constraint in (one, other, one)]
    assert [future.result(30).constraint.param for future in futures] == ["a", "b", "a"]
    assert grammars.compile(other).done()
    bad = Constraint.regex("(((", "a")
    for param in ("a", "b"):
        with pytest.raises(RequestError) as caught:
            grammars.compile(Constraint.regex("(((", param)).result(30)
        assert caught.value.param == param
    assert calls == [one, bad]


def test_compiling_happens_on_other_threads(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    original = compiler._compiled
    monkeypatch.setattr(
        compiler, "_compiled", lambda *a: (names.append(threading.current_thread().name), original(*a))[1]
    )
    compiled(Constraint.regex("elsewhere", "p"), grammars)
    assert names[0].startswith("surefoot-grammar")


def test_too_many_at_once_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, gate = Grammars(TOKENIZER, TOKENIZER.vocab_size), threading.Event()
    monkeypatch.setattr(compiler, "_MAX_PENDING", 3)
    monkeypatch.setattr(compiler, "_compiled", lambda *_: (gate.wait(30), "no")[1])
    waiting = [grammars.compile(Constraint.regex(f"a{n}", "p")) for n in range(3)]
    with pytest.raises(RequestError) as caught:
        grammars.compile(Constraint.regex("a4", "p")).result(0)
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    gate.set()
    for future in waiting:
        with pytest.raises(RequestError, match="no"):
            future.result(30)
    grammars.close()
    with pytest.raises(RequestError):
        grammars.compile(Constraint.regex("a5", "p")).result(0)


def test_a_caller_that_left_does_not_matter(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, original = threading.Event(), compiler._compiled
    monkeypatch.setattr(compiler, "_compiled", lambda *a: (gate.wait(30), original(*a))[1])
    constraint = Constraint.regex("left[0-9]", "p")
    gone, stays = grammars.compile(constraint), grammars.compile(constraint)
    assert gone.cancel()
    gate.set()
    assert stays.result(30).constraint == constraint


def test_a_model_without_an_end_refuses() -> None:
    tokenizer = PieceTokenizer()
    tokenizer.end_of_generation_ids = frozenset()
    with pytest.raises(RequestError, match="names no token that ends"):
        compiled(Constraint.regex("a", "p"), Grammars(tokenizer, tokenizer.vocab_size))


def test_a_faulty_grammar_is_forgotten(grammars: Grammars) -> None:
    constraint = Constraint.regex("forgotten", "p")
    first = compiled(constraint, grammars)
    assert compiled(constraint, grammars).initial is first.initial  # type: ignore[attr-defined]
    first.discard()  # type: ignore[attr-defined]
    assert compiled(constraint, grammars).initial is not first.initial  # type: ignore[attr-defined]


def test_schemas_keep_everything_but_undefined_formats() -> None:
    value = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "password"}, "at": {"format": "date"}},
        "anyOf": [{"format": "int32", "type": "integer"}, {"items": {"format": "binary"}}],
        "enum": [{"format": "password"}],
        "x-guidance": {"lenient": True},
    }
    before = json.dumps(value)
    made = enforceable(value)
    assert made.pop("x-guidance") != value["x-guidance"]
    assert made == {
        "type": "object",
        "properties": {"format": {"type": "string"}, "at": {"format": "date"}},
        "anyOf": [{"type": "integer"}, {"items": {}}],
        "enum": [{"format": "password"}],
    }
    assert json.dumps(value) == before


def test_a_json_rule_inside_a_grammar(grammars: Grammars) -> None:
    text = f'start: "call " {json_rule(PERSON)} "!"'
    matcher = compiled(Constraint.lark(text, "tools"), grammars).start()
    for piece in ('call {"name":', '"x","age": 3,\n "tags":[]}!'):
        matcher.commit(TOKENIZER.encode_inside(piece))
    assert matcher.complete


# --- hostile constraints ---------------------------------------------------------------------------------------------


def nested(before: str, leaf: str, after: str, count: int) -> str:
    return before * count + leaf + after * count


def chain(count: int, rule: Callable[[int], str]) -> str:
    return "\n".join(rule(n) for n in range(count))


def links(count: int, link: Callable[[str], object]) -> str:
    defs: dict[str, object] = {f"a{n}": link(f"#/$defs/a{n + 1}") for n in range(count)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**defs, f"a{count}": {"type": "array"}}})


def json_text(text: str) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, text, "p")


def lark(text: str) -> Constraint:
    return Constraint.lark(text, "p")


HOSTILE: dict[str, Callable[[], Constraint]] = {
    "deep schema": lambda: json_text(nested('{"items":', "{}", "}", 10_000)),
    "deep properties": lambda: json_text(nested('{"properties":{"a":', "{}", "}}", 6_000)),
    "deep json": lambda: json_text(nested("[", "", "]", 60_000)),
    "deep const": lambda: json_text('{"const":' + nested("[", "", "]", 60_000) + "}"),
    "huge enum": lambda: schema({"enum": [f"value number {n}" for n in range(5_000)]}),
    "many properties": lambda: schema(
        {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(5000)}}),
    "many required": lambda: schema({"type": "object", "required": [f"p{n}" for n in range(9_000)]}),
    "crossed all of": lambda: schema({"allOf": [
        {"anyOf": [{"properties": {f"p{i}{j}": {"type": "string"}}, "type": "object"} for j in range(3)]}
        for i in range(12)]}),
    "many any of": lambda: schema({"anyOf": [
        {"type": "object", "properties": {"a": {"const": n}}} for n in range(2000)]}),
    "links": lambda: json_text(links(3_500, lambda to: {"$ref": to})),
    "links in arrays": lambda: json_text(links(2_700, lambda to: {"items": {"$ref": to}})),
    "links in any of": lambda: json_text(links(1_900, lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]})),
    "links in all of": lambda: json_text(links(1_900, lambda to: {"allOf": [{"$ref": to}], "minItems": 1})),
    "doubling links": lambda: json_text(links(40, lambda to: {"prefixItems": [{"$ref": to}] * 2, "minItems": 2})),
    "circular links": lambda: schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "long string": lambda: schema({"type": "string", "minLength": 10**9}),
    "many items": lambda: schema({"type": "array", "items": {"type": "null"}, "minItems": 10**9}),
    "large multiple": lambda: schema({"type": "integer", "multipleOf": 1_000_000_007}),
    "large bounds": lambda: schema({"type": "integer", "minimum": -(10**30), "maximum": 10**40}),
    "long const": lambda: schema({"const": "x" * 120_000}),
    "exponential regex": lambda: Constraint.regex("(a|b)*a(a|b){30}", "p"),
    "nested counts": lambda: Constraint.regex("((a{1000}){1000}){1000}", "p"),
    "optional letters": lambda: Constraint.regex("a?" * 3000 + "a" * 3000, "p"),
    "deep regex": lambda: Constraint.regex(nested("(", "a", ")", 60_000), "p"),
    "stacked counts": lambda: Constraint.regex("a" + "{2}" * 40_000, "p"),
    "long regex": lambda: Constraint.regex("ab" * 60_000, "p"),
    "unicode regex": lambda: Constraint.regex(r"(\p{L}\w\p{N}){200}", "p"),
    "rule chain": lambda: lark("start: r0\n" + chain(9_500, lambda n: f"r{n}: r{n + 1}") + '\nr9500: "a"'),
    "terminal chain": lambda: lark("start: R0\n" + chain(9_500, lambda n: f"R{n}: R{n + 1}") + '\nR9500: "a"'),
    "recursive rules": lambda: lark(
        "start: r0\n" + chain(4_900, lambda n: f'r{n}: "a" r{n + 1} "b" | "c"') + '\nr4900: "a"'),
    "doubling rules": lambda: lark("start: r0\n" + chain(40, lambda n: f"r{n}: r{n + 1} r{n + 1}") + '\nr40: "a"'),
    "doubling terminals": lambda: lark("start: R0\n" + chain(40, lambda n: f"R{n}: R{n + 1} R{n + 1}") + '\nR40: "a"'),
    "empty rules": lambda: lark("start: r0\n" + chain(4_000, lambda n: f"r{n}: r{n + 1}? r{n + 1}?") + '\nr4000: "a"'),
    "deep rules": lambda: lark("start: " + nested("(", '"a"', ")", 60_000)),
    "ambiguous": lambda: lark('start: e\ne: e e | "a" | ""'),
    "endless": lambda: lark("start: start"),
    "negations": lambda: lark(
        "start: A\nA: " + " & ".join(f"~/(.|\\n)*a(.|\\n){{{n}}}b(.|\\n)*/" for n in range(12))),
    "substrings": lambda: lark('start: S\nS: %regex {"substring_chars": "' + "abcd efgh" * 13_000 + '"}'),
    "many terminals": lambda: lark("start: " + " | ".join(f"/[a-z]*{n}/" for n in range(6_000))),
    "brackets": lambda: lark("start: " + "[" * 60_000),
    "tildes": lambda: lark("start: A\nA: " + "~" * 100_000 + '"a"'),
    "gbnf chain": lambda: Constraint.gbnf(
        "root ::= r0\n" + chain(490, lambda n: f"r{n} ::= r{n + 1}") + '\nr490 ::= "a"', "p"),
    "gbnf circle": lambda: Constraint.gbnf(
        "root ::= r0\n" + chain(490, lambda n: f'r{n} ::= "a"? r{n + 1} r{(n * 7) % 490}?') + '\nr490 ::= "a"', "p"),
    "gbnf doubling": lambda: Constraint.gbnf(
        "root ::= r0\n" + chain(60, lambda n: f"r{n} ::= r{n + 1} r{n + 1}") + '\nr60 ::= "a"', "p"),
    "gbnf literal": lambda: Constraint.gbnf(
        'root ::= "' + "".join(chr(0x4E00 + n % 20_000) for n in range(16_000)) + '" root?', "p"),
    "gbnf counts": lambda: Constraint.gbnf('root ::= ((("a"{999}){999}){999} root?){999}', "p"),
    "gbnf set": lambda: Constraint.gbnf(
        "root ::= [" + "".join(chr(0x4E00 + 2 * n) for n in range(16_000)) + "] root?", "p"),
    "nested json": lambda: lark("start: %json " + nested('{"items":', "{}", "}", 10_000)),
}  # fmt: skip

TRY = """
import json, random, resource, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from grammar_cases import END, PieceTokenizer, allowed
from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint, ConstraintKind
from surefoot.kernels.errors import RequestError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
kind, text = json.load(sys.stdin)
tokenizer = PieceTokenizer()
grammars = Grammars(tokenizer, tokenizer.vocab_size)
slowest = 0.0
began = time.process_time()
try:
    grammar = grammars.compile(Constraint(ConstraintKind(kind), text, "p")).result(60)
    compiling = time.process_time() - began
    matcher, rng = grammar.start(), random.Random(1)
    for _ in range(60):
        began = time.thread_time()
        ids = allowed(matcher.masks_for(matcher.forced_drafts(8))[0])
        slowest = max(slowest, time.thread_time() - began)
        token = rng.choice(ids)
        matcher.commit([token])
        if token == END or matcher.complete:
            break
    reason = None
except RequestError as error:
    compiling, reason = time.process_time() - began, error.message
grammars.close()
with open("/proc/self/status") as status:  # getrusage would count what the parent held when it started this
    (peak,) = [int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:")]
print(json.dumps([compiling, slowest, peak, reason]))
"""


@pytest.mark.slow  # a process each, which may burn seconds
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraints_are_bounded(name: str, request: pytest.FixtureRequest) -> None:
    """In a process of its own: it must neither crash, nor take long, nor grow."""
    constraint = HOSTILE[name]()
    assert len(constraint.text) <= source.MAX_TEXT
    tests = str(request.config.rootpath / "tests")
    done = subprocess.run(
        [sys.executable, "-c", TRY, tests],
        input=json.dumps([constraint.kind.value, constraint.text]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    compiling, slowest, peak, reason = json.loads(done.stdout)
    print(f"{name}: compiled in {compiling:.2f} s, slowest mask {1000 * slowest:.0f} ms, {peak:.0f} MiB, {reason}")
    assert compiling < 8
    assert slowest < 0.5
    assert peak < 450


def test_everything_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, registry = Grammars(TOKENIZER, TOKENIZER.vocab_size), CollectorRegistry()
    GrammarMetrics(registry, grammars.counts, grammars.kept)
    gate, original = threading.Event(), compiler._compiled
    monkeypatch.setattr(compiler, "_compiled", lambda *a: (gate.wait(30), original(*a))[1])
    monkeypatch.setattr(compiler, "_MAX_PENDING", 1)
    good, bad = Constraint.regex("[ab]{3}", "p"), Constraint.regex("(", "p")
    first = [grammars.compile(good), grammars.compile(good), grammars.compile(bad)]
    gate.set()
    matcher = first[0].result(30).start()
    first[1].result(30)
    assert first[2].exception(30) is not None
    for _ in range(2):
        assert grammars.compile(bad).exception(30) is not None
    matcher.masks_for([])
    matcher.masks_for([TOKENIZER.encode_inside("a")[0]])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"surefoot_grammar_{name}", labels)

    results = {"new": 2, "joined": 1, "busy": 1, "known": 1}
    assert {result: value("requests_total", result=result) for result in results} == results
    assert value("compilations_total", kind="regex", outcome="usable") == 1
    assert value("compilations_total", kind="regex", outcome="refused") == 1
    assert value("compile_seconds_count") == 2 and (value("compile_seconds_sum") or 0) > 0
    assert value("mask_rows_total") == 3 and (value("mask_seconds_total") or 0) > 0
    assert value("cached") == 2 and (value("cached_bytes") or 0) > 0
    assert value("faults_total") == 0
    grammars.close()
