"""How the served model's conversations are written and its answers read: template, tool calls, reasoning.

Built once at start, from the template's text. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..engine.grammar.budget import ReasoningBudget
from ..engine.grammar.constraint import Constraint
from ..engine.grammar.matcher import Grammar
from ..kernels.errors import ConfigError, RequestError
from .deltas import DeltaParser, PlainText
from .message_parser import MessageParser, MessageReader
from .ports import ChatTemplate, Tokenizer
from .reasoning import formats
from .reasoning.formats import Begin, ReasoningFormat
from .reasoning.parser import ReasoningParser
from .schema.tools import CallPlan
from .tools import registry
from .tools.call_parser import CallParser
from .tools.constraint import answer_grammar, reasoned
from .tools.dialect import Dialect
from .tools.grammar import quoted
from .tools.prompting import described

_SWITCHES = ("enable_thinking", "thinking")  # what templates call the variable that turns reasoning on or off
_LETTERS = string.ascii_letters + string.digits


class ChatFormat:
    """The formats of one model."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, tool_parser: str | None = None) -> None:
        """`tool_parser` names a dialect where the template's own is not to be used. ConfigError if it cannot be."""
        self._template = template
        self._tokenizer = tokenizer
        self._control_ids: dict[str, int | None] = {}  # by marker; a memory, filled from any thread
        knows_tools = "tools" in template.variables
        found = registry.detect(template.source(with_tools=True)) if knows_tools else None
        name = tool_parser or found or registry.FALLBACK
        self._dialect: Dialect = registry.load(name)
        self.takes_tools = knows_tools and bool(tool_parser or found)
        if not self.takes_tools and name != registry.FALLBACK:
            raise ConfigError(
                f"--tool-parser {name}: the model's chat template knows no tools, so they are described to it in the "
                f"'{registry.FALLBACK}' format"
            )
        self.reasoning: ReasoningFormat | None = formats.detect(template.source())
        self.dialect_name = name

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        plan: CallPlan | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> str:
        """The prompt of a conversation. RequestError when the template refuses it."""
        shown = [] if plan is None else plan.shown
        if not self.takes_tools:
            messages, shown = described(messages, shown), []
        elif self._dialect.id_length is not None:
            messages = [_with_ids(message, self._dialect.id_length) for message in messages]
        return self._template.render(
            messages, tools=shown or None, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def variables(self, given: Mapping[str, Any] | None, effort: str | None) -> Mapping[str, Any] | None:
        """The template's variables under a `reasoning_effort`. RequestError where it would change nothing."""
        if effort is None:
            return given
        known = self._template.variables
        wanted: dict[str, Any] = {name: effort != "none" for name in _SWITCHES if name in known}
        if "reasoning_effort" in known:
            wanted["reasoning_effort"] = effort
        if not wanted and (effort != "none" or self.reasoning is not None):
            problem = "does not reason" if self.reasoning is None else "has no switch for its reasoning"
            raise RequestError(
                f"reasoning_effort: this model {problem}", param="reasoning_effort", code="unsupported_parameter"
            )
        return {**wanted, **(given or {})}

    def begin(self, prompt: str, continued: str | None) -> Begin:
        """Where the answer to a prompt begins; `continued` is the assistant's message that it goes on with."""
        if self.reasoning is None:
            return Begin.ANEW if continued is None else Begin.AFTER
        if continued is not None:
            return formats.begin_within(continued, self.reasoning)
        return formats.begin_of(prompt, self.reasoning)

    def parser(
        self, plan: CallPlan | None, begin: Begin, *, constrained: bool = False, show_reasoning: bool = True
    ) -> DeltaParser:
        """A reader for one answer that gives the deltas of a chat message."""
        if plan is None and self.reasoning is None:
            return PlainText()
        return MessageParser(self.reader(plan, begin, constrained=constrained), show_reasoning=show_reasoning)

    def reader(self, plan: CallPlan | None, begin: Begin, *, constrained: bool = False) -> MessageReader:
        """A reader for one answer. `constrained`: `constraint` holds it to something."""
        reasoning = None
        if self.reasoning is not None:
            reasoning = ReasoningParser(self.reasoning, begin, may_quote=not constrained)
        calls = None if plan is None else CallParser(self._dialect, plan.tools, self._new_id, parallel=plan.parallel)
        return MessageReader(reasoning, calls)

    def visible_ids(self, plan: CallPlan | None) -> frozenset[int]:
        """The control tokens that a parser for this plan looks for."""
        markers = [*(self.reasoning.special if self.reasoning else ()), *(self._dialect.special if plan else ())]
        ids = [self._control_id(marker) for marker in markers]
        return frozenset(token for token in ids if token is not None)

    def constraint(self, plan: CallPlan | None, begin: Begin, answer: Constraint | None = None) -> Constraint | None:
        """What the answer has to follow: it must call, its calls must fit strict schemas, or its text, if it is none
        that only calls, must be as `answer` says. None: no such promise."""
        if plan is None:
            return None if answer is None else replace(answer, frame=reasoned(self.reasoning, begin, self._spell))
        if answer is None and not (plan.required or plan.is_strict):
            return None
        calls = self._dialect.grammar(plan.tools, plan.parallel, self._spell)
        text = answer_grammar(
            self._dialect,
            calls,
            self._spell,
            required=plan.required,
            reasoning=self.reasoning,
            begin=begin,
            constrained=answer is not None,
        )
        if answer is not None and not plan.required:
            return replace(answer, frame=text)
        return Constraint.lark(text, "tool_choice" if plan.required else "tools")

    def budgeted(self, grammar: Grammar | None, limit: int | None, begin: Begin, vocab_size: int) -> Grammar | None:
        """A grammar under which the reasoning has at most `limit` tokens. RequestError where that cannot be."""
        if limit is None or (self.reasoning is not None and begin in (Begin.CLOSED, Begin.AFTER)):
            return grammar
        made = self.reasoning
        if made is None:
            raise RequestError(
                "thinking_token_budget: this model does not reason",
                param="thinking_token_budget",
                code="unsupported_parameter",
            )
        opener, closer = self._single_id(made.special[0]), self._single_id(made.closer)
        ending = tuple(self._tokenizer.encode("\n" + made.closer, add_special=False, parse_special=True))
        if opener is None or closer is None or ending[-1] != closer:
            raise RequestError(
                "thinking_token_budget: this model's marks of reasoning are several tokens",
                param="thinking_token_budget",
                code="unsupported_parameter",
            )
        return ReasoningBudget(
            limit, None if begin is Begin.INSIDE else opener, closer, ending, -(-vocab_size // 32), grammar
        )

    def _single_id(self, marker: str) -> int | None:
        """The token that is a marker, of whatever kind."""
        ids = self._tokenizer.encode(marker, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def _control_id(self, marker: str) -> int | None:
        """The control token that is a marker; None if it is text."""
        if marker not in self._control_ids:
            ids = self._tokenizer.encode(marker, add_special=False, parse_special=True)
            is_control = len(ids) == 1 and ids[0] in self._tokenizer.special_ids
            self._control_ids[marker] = ids[0] if is_control else None
        return self._control_ids[marker]

    def _spell(self, marker: str) -> str:
        """See Spell."""
        token = self._control_id(marker)
        return quoted(marker) if token is None else f"<[{token}]>"

    def _new_id(self) -> str:
        """The id of a call."""
        length = self._dialect.id_length
        if length is None:
            return "call_" + secrets.token_hex(12)
        return "".join(secrets.choice(_LETTERS) for _ in range(length))


def _with_ids(message: Mapping[str, Any], length: int) -> dict[str, Any]:
    """A message whose call ids have the form that the template insists on: ids of other servers are hashed."""

    def fitting(name: str) -> str:
        if len(name) == length and name.isascii() and name.isalnum():
            return name
        return hashlib.blake2b(name.encode(), digest_size=length).hexdigest()[:length]

    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = fitting(message["tool_call_id"])
    if message.get("tool_calls"):
        calls: Sequence[Mapping[str, Any]] = message["tool_calls"]
        changed["tool_calls"] = [{**call, "id": fitting(call.get("id") or "")} for call in calls]
    return changed
