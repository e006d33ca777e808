"""GBNF: what grammars match, against a recogniser that tries everything; faults by line; what becomes a lexeme."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache

import pytest
from grammar_cases import END, PieceTokenizer, allowed, compiled
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.engine.grammar.gbnf import LAST, Chars, Choice, Node, Repeat, Rule, Sequence, meet, parse, united, without
from surefoot.engine.grammar.gbnf_lark import lark_of_gbnf
from surefoot.kernels.errors import RequestError


class Bytes(PieceTokenizer):
    """No longer pieces: where a text is prescribed, only its canonical tokens are allowed."""

    PIECES = ()


TOKENIZER = Bytes()

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
# newlines inside of groups, and comments anywhere
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@cache
def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENIZER.vocab_size)


def matches(text: str, answer: str) -> bool:
    """Whether an answer, byte by byte, is one of the grammar's. Its beginning may lead to endless answers only, which
    is found out in the middle."""
    matcher = compiled(Constraint.gbnf(text, "p"), grammars()).start()
    try:
        for byte in answer.encode():
            if matcher.complete or 4 + byte not in allowed(matcher.masks_for()[0]):
                return False
            matcher.commit([4 + byte])
        return matcher.complete or END in allowed(matcher.masks_for()[0])
    except RequestError as error:
        assert error.code == "grammar_too_complex"
        return False


Known = dict[tuple[str, int], frozenset[int]]  # where a rule may end that begins at a place


def ends(node: Node, text: str, starts: frozenset[int], known: Known) -> frozenset[int]:
    """Where a part may end that begins at one of `starts`, as far as it is known of the rules."""
    match node:
        case Chars(ranges):
            return frozenset(
                at + 1 for at in starts if at < len(text) and meet(((ord(text[at]), ord(text[at])),), ranges)
            )
        case Rule(name):
            return frozenset[int]().union(*(known.setdefault((name, at), frozenset()) for at in starts))
        case Sequence(items):
            for item in items:
                starts = ends(item, text, starts, known)
            return starts
        case Choice(options):
            return frozenset[int]().union(*(ends(option, text, starts, known) for option in options))
        case Repeat(item, low, high):
            found = starts if low == 0 else frozenset[int]()
            for count in range(1, (low + len(text) + 1 if high is None else high) + 1):
                starts = ends(item, text, starts, known)
                found |= starts if count >= low else frozenset()
            return found


def expected(rules: dict[str, Node], text: str) -> bool:
    """By asking again until nothing new is found."""
    known: Known = {("root", 0): frozenset()}
    before: Known = {}
    while before != known:
        before = dict(known)
        for name, at in before:
            known[name, at] = ends(rules[name], text, frozenset({at}), known)
    return len(text) in known["root", 0]


# --- random grammars -------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', "[ab]", "[^a]", '""', "one", "two", "[a-b]"])


def grouped(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{1,}"])
    return st.one_of(
        st.lists(children, min_size=1, max_size=3).map(" ".join),
        st.lists(children, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.builds("({}){}".format, children, marks),
    )


BODIES = st.recursive(ATOMS, grouped, max_leaves=5)
WORDS = ["".join(letters) for size in range(5) for letters in itertools.product("ab", repeat=size)]


@given(BODIES, BODIES, BODIES)
@settings(max_examples=80, deadline=None)
def test_random_grammars(root: str, one: str, two: str) -> None:
    text = f"root ::= {root}\none ::= {one}\ntwo ::= {two}"
    rules = parse(text)
    words = {word for word in WORDS if expected(rules, word)}
    try:
        compiled(Constraint.gbnf(text, "p"), grammars())
    except RequestError as error:
        assume("takes too long" not in error.message and "Too many" not in error.message)
        assert not words, error.message
        return
    rng = random.Random(text)
    tried = [*rng.sample(WORDS, 8), *rng.sample(sorted(words), min(6, len(words)))]
    assert [matches(text, word) for word in tried] == [word in words for word in tried]


@pytest.mark.parametrize(
    "text",
    [
        'root ::= [a-b]* "ab"',
        'root ::= "ab" "b" | [a] "ba"',
        'root ::= ("a" | "b")* "abb" root?',
        'root ::= "a" root "b" | ""',
        'root ::= one*\none ::= "a" | "ab" | "ba"',
        'root ::= one one\none ::= ("a" | "aa") root?',
        'root ::= "a"{0} "b"{2,}',
        'root ::= (""  | "a") [ab]?',
        'root ::= "b" one | one "a"\none ::= "(" root ")" | "a"*',
        'root ::= one* "()"\none ::= "(" one? ")"',
        'root ::= two "()"\none ::= "(" one? ")"\ntwo ::= one | ""',
        'root ::= one two\none ::= [ab]+ "b"\ntwo ::= "b" three\nthree ::= "a" three | "c"',
    ],
)
def test_grammars_that_lexemes_would_change(text: str) -> None:
    rules = parse(text)
    tried = (*WORDS, "b(a)a", "(b)a", "b(baa)", "()", "()()", "(())()", "abc", "abbc", "abbbac")
    words = [word for word in tried if expected(rules, word)]
    assert words
    for word in tried:
        assert matches(text, word) == (word in words), word


def test_deeply_nested_groups() -> None:
    text = f'root ::= {"(" * 45}"a" root? "b"{" | [c])" * 45}'
    assert all(matches(text, word) for word in ("ab", "aabb", "c", "acb"))
    assert not any(matches(text, word) for word in ("aab", "b", "cc"))


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_json_is_made_of_lexemes() -> None:
    lark = lark_of_gbnf(JSON)
    assert lark.count("\nT") == 10 and "start" in lark
    assert "T" not in lark_of_gbnf('root ::= [ab]* "ab" root?')


@pytest.mark.parametrize("seed", range(6))
def test_random_answers_are_json(seed: int) -> None:
    rng = random.Random(seed)
    matcher = compiled(Constraint.gbnf(JSON, "grammar"), grammars()).start()
    ids: list[int] = []
    while len(ids) < 400:
        choices = allowed(matcher.masks_for(ids[:0])[0])
        closing = [token for token in choices if TOKENIZER.text([token])[:1] in '"}],' and token > END]
        token = END if END in choices else rng.choice(closing if closing and rng.random() < 0.5 else choices)
        matcher.commit([token])
        if token == END:
            break
        ids.append(token)
    assert isinstance(json.loads(TOKENIZER.text(ids)), dict)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= missing", "line 1: there is no rule 'missing'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= "a', "unexpected end"),
        ('root ::= "a\n"', "end of the line"),
        ("root ::= [a", "unexpected end"),
        ("root ::= []", "without characters"),
        ("root ::= [b-a]", "wrong way round"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a")', "expected the end of the line"),
        ('root ::= "a"{2,1}', "wrong way round"),
        ('root ::= "a"{', "expected the end of the line"),
        (r'root ::= "\q"', "is no escape"),
        (r'root ::= "\x4"', "is no escape"),
        (r'root ::= "\U00110000"', "is no escape"),
        ('root = "a"', "expected ::="),
        ("root ::= <think>", "expected the end of the line"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "too deeply"),
        ('root ::= "b"\nother ::= "a"' + "?" * 2_000, "line 2: repetitions are nested too deeply"),
        ("root ::= [\\uD800]", "surrogates"),
        ('root ::= "' + "a" * 20_000 + '"', "characters"),
        ("\n".join(f'r{n} ::= "a"' for n in range(600)), "rules"),
    ],
)
def test_faults_name_their_line(text: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(Constraint.gbnf(text, "grammar"), grammars())
    assert words in caught.value.message and caught.value.param == "grammar"


def test_escapes_and_sets() -> None:
    text = r'root ::= "\x41\u00e9\U0001F600\"\\\n" [^a-z\]] [\-x] .' + "\n"
    for answer in ('Aé😀"\\\nA-\n', 'Aé😀"\\\n1x語'):
        assert matches(text, answer)
    for answer in ('Aé😀"\\\na-b', 'Aé😀"\\\n]-b', 'Aé😀"\\\nAyb'):
        assert not matches(text, answer)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1])), max_size=6))
def test_sets_of_characters(pairs: list[tuple[int, int]]) -> None:
    codes = {code for low, high in pairs for code in range(low, high + 1)}
    ranges = united(tuple(pairs))
    assert {code for low, high in ranges for code in range(low, high + 1)} == codes
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(ranges))
    others = without(ranges)
    assert not meet(ranges, others) and united(ranges, others) == ((0, LAST),)


def test_rules_that_double_what_doubles_are_refused() -> None:
    """Written out they fill any memory; rules that refer to themselves are not written out."""
    doubling = "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(60)) + '\nr60 ::= "a"'
    with pytest.raises(ValueError, match=r"rule 'r\d+' stands for more than 100,000 symbols"):
        lark_of_gbnf(doubling)
    assert lark_of_gbnf('root ::= item item item\nitem ::= "(" root ")" | "x"')
