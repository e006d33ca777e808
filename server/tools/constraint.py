"""The grammar of a whole answer: reasoning first where the model reasons, then the calls that have to come, or text in
which calls may come, or either calls or an answer that has a grammar of its own."""

from __future__ import annotations

import json
import re

from ..reasoning.formats import Begin, ReasoningFormat
from .dialect import Dialect
from .grammar import Grammar, Spell, quoted, text_until

_TEXT = "/(?s:.*)/"
_LINES = r"/[ \r\n]{0,4}/"
_ANSWER = "@answer"  # in a Constraint's frame


def answer_grammar(
    dialect: Dialect,
    calls: Grammar,
    spell: Spell,
    *,
    required: bool,
    reasoning: ReasoningFormat | None,
    begin: Begin,
    constrained: bool = False,
) -> str:
    """Lark text for an answer that begins as its prompt leaves it. `required`: only calls after the reasoning.
    `constrained`: only calls or, instead of them, what `@answer` stands for."""
    before, rules = _reasoning(reasoning, begin, spell)
    if required:
        body = "calls"
    elif constrained:
        body = f"(calls | {_ANSWER})"
    elif not calls.opener:
        first = "".join(sorted({re.escape(opener[0]) for opener in dialect.first_openers}))
        body, rules = "(calls | other)", [*rules, rf"other: /([^{first}\s](?s:.*))?/"]
    elif calls.opener.startswith('"'):
        literal, token = _split(calls.opener)
        rules = [*rules, f"marker[lazy]: /(?s:.*){re.escape(literal).replace('/', '[/]')}/", f"rest: {_TEXT}"]
        body = f"(marker {calls.block})* rest" if not token else f"(marker+ {token} {calls.block})* marker* rest"
    else:
        body = f"text ({calls.opener} {calls.block} text)*"
        rules = [*rules, f"text: {_TEXT}"]
    return "\n".join([f"start: {before} {body}", f"calls: {calls.blocks()}", *rules, *calls.rules])


def reasoned(reasoning: ReasoningFormat | None, begin: Begin, spell: Spell) -> str:
    """Lark text for reasoning and then what `@answer` stands for; empty where no reasoning can come."""
    before, rules = _reasoning(reasoning, begin, spell)
    return "\n".join([f"start: {before} {_ANSWER}", *rules]) if before else ""


def _split(opener: str) -> tuple[str, str]:
    """The text that an opener begins with, and the control token and more behind it, if there is one."""
    literal, _, rest = opener.partition('" ')
    return json.loads(literal if literal.endswith('"') else literal + '"'), rest


def _reasoning(made: ReasoningFormat | None, begin: Begin, spell: Spell) -> tuple[str, list[str]]:
    """What comes before calls and text, and the rules for it."""
    if made is None or begin is Begin.AFTER:
        return "", []
    if begin is Begin.CLOSED:
        return _LINES, []
    closer = spell(made.closer)
    is_text = closer == quoted(made.closer)
    thought = text_until(made.closer, "thought") if is_text else f"thought: {_TEXT} {closer}"
    opener = _spelled(made, spell)
    if begin is Begin.INSIDE:
        return f"thought {_LINES}", [thought]
    return f"[{opener} thought {_LINES}]", [thought]


def _spelled(made: ReasoningFormat, spell: Spell) -> str:
    """The opener, of which only the first part may be a control token."""
    head = made.special[0]
    return f"{spell(head)} {quoted(made.opener.removeprefix(head))}".strip()
