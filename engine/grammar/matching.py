"""Grammars compiled by llguidance, and how far one answer has come in one: masks, drafts, rollback, its share of time.

llguidance reports faults by a state that each call may enter and that reads like an ordinary end of the answer. So
every call here is followed by the question whether it failed: no answer goes on unconstrained or ends in silence.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from ...kernels.errors import RequestError
from .constraint import Constraint
from .metrics import GrammarCounts
from .vocabulary import GrammarVocabulary

_log = logging.getLogger("surefoot.engine")

FREE_SECONDS = 0.02  # of a mask; it takes well under a millisecond for ordinary grammars
MAX_SECONDS = 2.0  # that an answer's masks may take beyond that, all together: they hold up every other request


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A constraint ready to be used. Answers share what their grammar's lexer has learnt of the vocabulary."""

    constraint: Constraint
    vocabulary: GrammarVocabulary
    initial: LLMatcher  # never advanced
    discard: Callable[[], None]  # forgets the compiled grammar, after a fault
    counts: GrammarCounts

    def start(self, *, may_end: bool = True) -> AnswerMatcher:
        """See Grammar.start."""
        return AnswerMatcher(self, may_end)


class AnswerMatcher:
    """See Matcher."""

    __slots__ = (
        "_base",
        "_committed",
        "_ends",
        "_grammar",
        "_looks_ahead",
        "_masks",
        "_matcher",
        "_may_end",
        "_seconds",
        "_stride",
        "complete",
    )

    def __init__(self, grammar: CompiledGrammar, may_end: bool) -> None:
        self._grammar = grammar
        self._matcher = grammar.initial.deep_copy()
        self._ends = grammar.vocabulary.end_ids
        self._may_end = may_end
        self._committed: list[int] = []
        self._looks_ahead = True  # until a window fails beyond its first row
        self._seconds = 0.0  # spent beyond what is free
        self._stride = 4 * grammar.vocabulary.num_words
        self._masks: NDArray[np.uint32] = np.zeros((0, grammar.vocabulary.num_words), np.uint32)
        self._base = 0
        self.complete = False
        self._check()

    def masks_for(self, drafts: Sequence[int] = ()) -> NDArray[np.uint32]:
        """See Matcher.masks_for."""
        matcher, base, stride = self._matcher, self._room(len(drafts) + 1), self._stride
        began = time.thread_time()
        matcher.unsafe_compute_mask_ptr(base, stride)
        self._check()
        self.complete = not self._committed and self._only_ends(self._masks[0])
        rows = 1
        for draft in drafts if self._looks_ahead else ():
            if not self._advance(draft):
                break
            matcher.unsafe_compute_mask_ptr(base + rows * stride, stride)
            if matcher.is_error():
                break
            rows += 1
        self._grammar.counts.mask_rows += rows
        return self._back(rows - 1, rows, began)

    def mask_after(self, drafts: Sequence[int]) -> NDArray[np.uint32] | None:
        """See Matcher.mask_after."""
        if drafts and not self._looks_ahead:
            return None
        matcher, base, began, advanced = self._matcher, self._room(1), time.thread_time(), 0
        while advanced < len(drafts) and self._advance(drafts[advanced]):
            advanced += 1
        arrived = advanced == len(drafts)
        if arrived:
            matcher.unsafe_compute_mask_ptr(base, self._stride)
            arrived = not matcher.is_error()
        masks = self._back(advanced, 1, began)
        return masks[0] if arrived else None

    def _back(self, advanced: int, rows: int, began: float) -> NDArray[np.uint32]:
        """Takes drafts back, charges for the time since `began`, and returns the rows of masks that were written."""
        if advanced and not self._matcher.is_error():
            self._matcher.rollback(advanced)
        if self._matcher.is_error():
            self._restore()
        self._charge(time.thread_time() - began, rows)
        masks = self._masks[:rows]
        if not self._may_end:
            self._forbid_ends(masks)
        return masks

    def _advance(self, draft: int) -> bool:
        """Consumes a draft, unless the grammar forbids it or it would end the answer."""
        matcher = self._matcher
        if draft in self._ends or not 0 <= draft < self._grammar.vocabulary.vocab_size:
            return False
        if not matcher.try_consume_tokens([draft]):
            return False
        if matcher.is_stopped():
            matcher.rollback(1)
            return False
        return True

    def _restore(self) -> None:
        """A draft led to a fault. Plain steps may never get there, so it counts only if the answer itself does."""
        self._looks_ahead = False
        self._matcher = self._grammar.initial.deep_copy()
        self._matcher.consume_tokens(self._committed)
        self._check()

    def forced_drafts(self, limit: int) -> list[int]:
        """See Matcher.forced_drafts."""
        began = time.thread_time()
        forced = self._matcher.compute_ff_tokens()
        self._check()
        self._charge(time.thread_time() - began, 1)
        return forced[:limit]

    def commit(self, token_ids: Sequence[int]) -> None:
        """See Matcher.commit."""
        for token in token_ids:
            if token in self._ends:
                return
            self._matcher.consume_token(token)
            self._check()
            self._committed.append(token)
        self.complete = self._matcher.is_stopped()

    def _room(self, rows: int) -> int:
        """Makes room for masks; returns their address."""
        if rows > len(self._masks):
            self._masks = np.zeros((max(rows, 2 * len(self._masks)), self._grammar.vocabulary.num_words), np.uint32)
            self._base = self._masks.ctypes.data
        return self._base

    def _only_ends(self, mask: NDArray[np.uint32]) -> bool:
        """Whether a mask allows no token but those that end the answer."""
        others = mask.copy()
        self._forbid_ends(others[np.newaxis])
        return not others.any()

    def _forbid_ends(self, masks: NDArray[np.uint32]) -> None:
        for token in self._ends:
            masks[:, token // 32] &= np.uint32(0xFFFFFFFF ^ 1 << token % 32)

    def _check(self) -> None:
        if self._matcher.is_error():
            self._fail(fault_text(self._matcher.get_error()))

    def _charge(self, seconds: float, rows: int) -> None:
        self._grammar.counts.mask_seconds += seconds
        if seconds > FREE_SECONDS * rows:
            self._seconds += seconds - FREE_SECONDS * rows
            if self._seconds > MAX_SECONDS:
                self._fail("finding the allowed tokens takes too long")

    def _fail(self, reason: str) -> None:
        self._grammar.discard()
        self._grammar.counts.faults += 1
        constraint = self._grammar.constraint
        _log.warning("a grammar of kind %s failed: %s", constraint.kind.value, reason)
        raise too_complex(constraint, reason)


def too_complex(constraint: Constraint, reason: str) -> RequestError:
    """The error of an answer whose grammar gave up."""
    return RequestError(
        f"{constraint.param}: the answer cannot be constrained further: {reason}",
        param=constraint.param,
        code="grammar_too_complex",
    )


def fault_text(error: str) -> str:
    """What went wrong as one line, of a message that may go on with an excerpt of the grammar or internal state."""
    place = _PLACE.match(error)
    where = f"line {place[1]}, column {place[2]}: " if place else ""
    text = error[place.end() if place else 0 :].removeprefix("failed to compile JSON schema: ").strip()
    return where + (_reason(text) or "unknown fault")


def _reason(text: str) -> str:
    if text.startswith("panic"):
        return "the grammar library failed"
    if pattern := _PATTERN.match(text):
        return f"no regular expression: {pattern[1]}"
    text = _DETAILS.sub("", text.partition("\n")[0])
    if unknown := _UNKNOWN_KEYS.fullmatch(text):
        words = ", ".join(f"'{key}'" for key in json.loads(unknown[1]))
        return f"no grammar can express its keywords {words}"
    if unknown := _ELSEWHERE.match(text):
        return f"'$ref': '{unknown[1][:80]}' leads out of the schema, and nothing is fetched"
    if unknown := _NOWHERE.fullmatch(text):
        return f"'$ref': there is no '{unknown[1][:80]}' in the schema"
    return _KNOWN.get(text, text)


_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_PATTERN = re.compile(r"(?s:.*?regex parse error:\n.*?\nerror: )([^\n]+)")
_DETAILS = re.compile(r" \(at .*\)$")  # of a token: its text once more, and its kind
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: (\[.*\])")
_ELSEWHERE = re.compile(r"Resource '(?:json-schema:///)?([^']*)' is not present in a registry")
_NOWHERE = re.compile(r"Pointer '([^']*)' does not exist")
_KNOWN = {
    "lexer error": "an unclosed text, or a character that begins nothing",
    "NoExtensionBias": "at some point no token of this model can go on (does it have a finite answer?)",
    "NoExtension": "no answer matches",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf": (
        "the alternatives of its 'oneOf' cannot be told apart by their types, constants or required keys; use 'anyOf'"
    ),
}
