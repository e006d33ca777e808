"""Calls as DeepSeek's models write them: R1 and V3 with JSON in a fence, V3.1 with bare JSON,

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

and from V3.2 on with parameters in markers, which say themselves whether they are strings:

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>
"""  # noqa: RUF002 - the markers are written with these bars

from __future__ import annotations

from collections.abc import Sequence

from ..growing_text import GrowingText, Stops, Unreadable, Wait
from . import json_text
from .definitions import Tool, ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, MarkedArguments, Spell, choice, json_arguments, layout, marked_calls, quoted
from .typed_values import member, up_to

_MAX_NAME = 256

_BEGIN, _END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
_CALL, _CALL_END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁end\uff5c>"
_SEP = "<\uff5ctool▁sep\uff5c>"
_FENCE = "```"
_SEP_STOP, _LINE_END = Stops(_SEP), Stops("\n")

_DSML = "\uff5cDSML\uff5c"
_BLOCKS = {f"<{_DSML}{word}>": f"</{_DSML}{word}>" for word in ("function_calls", "tool_calls")}
_INVOKE, _INVOKE_END = f'<{_DSML}invoke name="', f"</{_DSML}invoke>"
_PARAMETER, _PARAMETER_END = f'<{_DSML}parameter name="', f"</{_DSML}parameter>"
_QUOTE = Stops('"')
_IS_STRING = {'" string="true">': frozenset({"string"}), '" string="false">': frozenset[str](), '">': None}


class _DeepSeek:
    """What all versions share: the reader takes every form."""

    openers: Sequence[str] = (_BEGIN, _CALL, *_BLOCKS)
    first_openers: Sequence[str] = ()
    special: Sequence[str] = (_BEGIN, _END, _CALL, _CALL_END, _SEP, _DSML)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        if opener in _BLOCKS:
            yield from _invocations(text, _BLOCKS[opener], tools)
            return
        if opener == _BEGIN:
            yield from text.skip_space()
            yield from text.expect(_CALL)
        while True:
            yield from _json_call(text)
            if not (yield from text.skip_past(_CALL)):
                break
        yield from text.skip_past(_END)


class DeepSeekFenced(_DeepSeek):
    """R1 and V3."""

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        return _json_grammar(tools, parallel, spell, f"function{_SEP}{{name}}\n{_FENCE}json\n", f"\n{_FENCE}", "\n")


class DeepSeekJson(_DeepSeek):
    """V3.1."""

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        return _json_grammar(tools, parallel, spell, f"{{name}}{_SEP}", "", "")


class DeepSeekMarkup(_DeepSeek):
    """V3.2."""

    _word = "function_calls"

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        before = f'{_PARAMETER}{{key}}" string="{{is_string}}">'
        arguments = MarkedArguments(before, f"{_PARAMETER_END}\n", (_DSML,))
        call, rules = marked_calls(tools, spell, arguments, (f'{_INVOKE}{{name}}">\n', f"{_INVOKE_END}\n"))
        opener = layout(f"<{_DSML}{self._word}>", (_DSML,), spell)
        closer = layout(f"</{_DSML}{self._word}>", (_DSML,), spell)
        again = "+" if parallel else ""
        return Grammar(opener, f"{quoted(chr(10))} {call}{again} {closer}", rules, None)


class DeepSeekMarkup4(DeepSeekMarkup):
    """V4, which calls the outer marker otherwise."""

    _word = "tool_calls"


def _json_grammar(tools: ToolSet, parallel: bool, spell: Spell, before: str, after: str, between: str) -> Grammar:
    rules: list[str] = []
    for index, tool in enumerate(tools.tools):
        head, tail = layout(before.replace("{name}", tool.name), (_SEP,), spell), quoted(after)
        rules += [f"call_{index}: {head} arguments_{index} {tail}", f"arguments_{index}: {json_arguments(tool)}"]
    rules.append("call: " + choice([f"call_{index}" for index in range(len(tools.tools))]))
    one = f"{spell(_CALL)} call {spell(_CALL_END)}"
    again = f" ({quoted(between)} {one})*" if parallel else ""
    return Grammar(spell(_BEGIN), f"{one}{again} {spell(_END)}", rules, None)


def _json_call(text: GrowingText) -> Calls:
    """One call, behind its marker."""
    head = (yield from text.until(_SEP_STOP, _MAX_NAME)).strip()
    yield from text.expect(_SEP)
    yield from text.skip_space()
    if (yield from text.next_is("{")):
        name, fenced = head, False
    else:
        name, fenced = (yield from text.until(_LINE_END, _MAX_NAME)).strip(), True
        yield from text.skip_space()
        yield from text.expect(_FENCE + "json", _FENCE)
        yield from text.skip_space()
        if not (yield from text.next_is("{")):
            raise Unreadable("expected an object")
    yield Name(name)
    for piece in json_text.value(text):
        yield None if piece is None else Arguments(piece)
    yield END
    if fenced:
        yield from text.skip_past(_FENCE)
    yield from text.skip_past(_CALL_END)


def _invocations(text: GrowingText, closer: str, tools: ToolSet) -> Calls:
    yield from text.skip_space()
    yield from text.expect(_INVOKE)
    while True:
        name = yield from text.until(_QUOTE, _MAX_NAME)
        yield from text.expect('">')
        yield Name(name)
        yield from _parameters(text, tools.get(name))
        yield END
        if not (yield from text.skip_past(_INVOKE)):
            break
    yield from text.skip_past(closer)


def _parameters(text: GrowingText, tool: Tool) -> Calls:
    yield Arguments("{")
    first = True
    while not (yield from text.skip_past(_INVOKE_END)):
        yield from text.skip_space()
        yield from text.expect(_PARAMETER)
        key = yield from text.until(_QUOTE, _MAX_NAME)
        types = yield from _declared(text)
        value = up_to(text, _PARAMETER_END, (_PARAMETER, _INVOKE_END))
        for piece in member(key, value, tool.types(key) if types is None else types, first):
            yield None if piece is None else Arguments(piece)
        first = False
    yield Arguments("}")


def _declared(text: GrowingText) -> Wait[frozenset[str] | None]:
    """The types that a parameter's own marker declares; None: it does not say."""
    return _IS_STRING[(yield from text.expect(*_IS_STRING))]
