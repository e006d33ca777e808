"""A conversation made ready for the engine: its prompt, what the answer has to follow, and who reads the answer.

The part of a request that chat completions and responses share. Knows no body of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.grammar.constraint import Constraint
from ..engine.grammar.matcher import Grammar
from ..kernels.errors import RequestError
from .chat_format import ChatFormat
from .prompts import Prompt, Rendering
from .reasoning.formats import Begin
from .schema.chat import Message
from .schema.tools import CallPlan
from .service import Service

_COMPILE_S = 10.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered conversation."""

    chat: ChatFormat
    plan: CallPlan | None
    prompt: Prompt
    begin: Begin
    grammar: Grammar | None


async def prepared(
    service: Service,
    messages: Sequence[Message],
    fields: Rendering,
    *,
    continued: str | None = None,
    reasoning_limit: int | None = None,
) -> Conversation:
    """Renders and tokenizes the messages and compiles what their answer must match. RequestError 400 if that fails.

    `continued` is the assistant's message that the answer goes on with, `reasoning_limit` the most tokens of reasoning.
    """
    chat, plan = service.prompter.chat(), fields.call_plan()
    prompt = await service.prompter.from_messages(messages, fields)
    begin = chat.begin(prompt.text or "", continued)
    constraint = await service.prompter.run(lambda: chat.constraint(plan, begin))
    grammar = None if constraint is None else await _compiled(service, constraint)
    grammar = chat.budgeted(grammar, reasoning_limit, begin, service.model.vocab_size)
    return Conversation(chat, plan, prompt, begin, grammar)


async def _compiled(service: Service, constraint: Constraint) -> Grammar:
    """The grammar that holds the answer to its calls. RequestError 400 if there is none, or not within the time."""
    # Shielded: the compiler finishes what it began, for the next request, whoever has stopped waiting.
    work = asyncio.shield(asyncio.wrap_future(service.engine.compile(constraint)))
    try:
        return await asyncio.wait_for(work, _COMPILE_S)
    except TimeoutError:
        raise RequestError(
            f"The grammar of these tools is not compiled within {_COMPILE_S:g} s",
            param="tools",
            code="grammar_too_slow",
        ) from None
