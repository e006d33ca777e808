"""A conversation made ready for the engine: its prompt, what the answer has to follow, and who reads the answer.

The part of a request that chat completions and responses share. Knows no body of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.grammar.constraint import Constraint
from ..engine.grammar.matcher import Grammar
from .chat_format import ChatFormat
from .prompts import Prompt, Rendering
from .reasoning.formats import Begin
from .schema.chat import Message
from .schema.tools import CallPlan
from .service import Service
from .structured import compiled


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered conversation."""

    chat: ChatFormat
    plan: CallPlan | None
    prompt: Prompt
    begin: Begin
    grammar: Grammar | None
    constrained: bool  # its answer is held to calls, schemas or a grammar


async def prepared(
    service: Service,
    messages: Sequence[Message],
    fields: Rendering,
    *,
    answer: Constraint | None = None,
    continued: str | None = None,
    reasoning_limit: int | None = None,
) -> Conversation:
    """Renders and tokenizes the messages and compiles what their answer must match. RequestError 400 if that fails.

    `answer` is what its text must look like (`structured.constraint_of`), `continued` the assistant's message that the
    answer goes on with, `reasoning_limit` the most tokens of reasoning.
    """
    chat, plan = service.prompter.chat(), fields.call_plan()
    prompt = await service.prompter.from_messages(messages, fields)
    begin = chat.begin(prompt.text or "", continued)
    constraint = await service.prompter.run(lambda: chat.constraint(plan, begin, answer))
    grammar = await compiled(service.engine, constraint)
    grammar = chat.budgeted(grammar, reasoning_limit, begin, service.model.vocab_size)
    return Conversation(chat, plan, prompt, begin, grammar, constraint is not None)
