"""Compiles constraints: on threads of its own, within limits, once per text. Owns the vocabulary, the compiled grammars
and the threads; knows no requests.

A constraint is the sender's program for this process, so everything it can cost is bounded: the size of its text, the
work and memory of llguidance (its limits, and a stack that the deepest text of that size cannot exhaust), the number
of constraints in work, and the number and size of grammars kept. A sender waits no longer than `COMPILE_SECONDS`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from ...kernels.errors import RequestError
from .cache import BoundedCache
from .constraint import Constraint, ConstraintKind
from .matcher import Grammar
from .matching import CompiledGrammar, fault_text
from .metrics import BUSY, JOINED, KNOWN, NEW, GrammarCounts
from .source import grammar_source
from .vocabulary import GrammarVocabulary, Tokenizer

_log = logging.getLogger("surefoot.engine")

COMPILE_SECONDS = 10.0  # that a request waits for its grammar
_WORKERS = 2
_STACK_BYTES = 256 * 2**20  # reserved, not used: rules that refer to each other are followed recursively
_MAX_PENDING = 64
_MAX_GRAMMARS = 64
_MAX_BYTES = 256 * 2**20
_BYTES_PER_GRAMMAR = 2**20  # measured, as the next one: of a small grammar
_BYTES_PER_SECOND = 128 * 2**20  # of what a compiler can allocate in a second of its own time
_IN_ITS_GRAMMAR = "line 1, column 8: "  # where a pattern stands in the grammar that is made of it
_PROBE_STEPS = 16  # tokens of an answer that are tried out before the grammar is used
_PROBE_SECONDS = 0.5
_SLOW_MASK_SECONDS = 0.1  # of a mask that was computed before; ordinary ones take a thousandth
_MAX_REASON = 300  # characters

_LIMITS = LLParserLimits(
    max_lexer_states=20_000,  # 1 to 2 kB each; ordinary grammars have some hundreds
    max_grammar_size=200_000,
    verbose_errors=False,
)

_Key: TypeAlias = Constraint  # but for whose sake it is compiled
_Result: TypeAlias = LLMatcher | str  # a grammar before its first token, or why there is none


class Grammars:
    """Compiled grammars of one model. Any thread may call any method; none blocks but `prepare` and `close`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: GrammarVocabulary | str | None = None  # a text says why there is none
        self._building = threading.Lock()  # the vocabulary
        self._lock = threading.Lock()  # everything below
        self._kept: BoundedCache[_Key, _Result] = BoundedCache(_MAX_GRAMMARS, _MAX_BYTES)
        self._pending: dict[_Key, Future[_Result]] = {}
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="surefoot-grammar")
        self._closed = False
        self.counts = GrammarCounts()

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """A compiled grammar, at once if it is known. RequestError: 400 says why there can be none, 429 when too many
        are being compiled."""
        key = replace(constraint, param="")
        answer: Future[Grammar] = Future()
        with self._lock:
            result = self._kept.get(key)
            work = None if result is not None else self._work_on(key, constraint)
            if result is not None:
                self.counts.asked[KNOWN] += 1
        if result is not None:
            self._give(answer, constraint, key, result)
        elif work is None:
            answer.set_exception(_busy())
        else:
            work.add_done_callback(partial(self._done, answer, constraint, key))
        return answer

    def prepare(self) -> None:
        """Builds the model's vocabulary, for which the first constraint, and by the GIL everybody, would wait."""
        self._built()

    def _built(self) -> GrammarVocabulary | str:
        with self._building:
            if self._vocabulary is None:
                began = time.perf_counter()
                try:
                    self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
                except ValueError as fault:
                    self._vocabulary = str(fault)
                _log.info("vocabulary for constraints built in %.2f s", time.perf_counter() - began)
            return self._vocabulary

    def kept(self) -> tuple[int, int]:
        """How many results are kept, and their estimated bytes."""
        return len(self._kept), self._kept.num_bytes

    def close(self) -> None:
        """Ends the threads; constraints that wait to be compiled are refused."""
        with self._lock:
            self._closed = True
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _work_on(self, key: _Key, constraint: Constraint) -> Future[_Result] | None:
        """The work that compiles a text, new if nobody else asked for it. None: there is too much of it."""
        work, met = self._pending.get(key), JOINED
        if work is None:
            met = BUSY
            if not self._closed and len(self._pending) < _MAX_PENDING:
                met = NEW
                with _deep_stacks():
                    work = self._pending[key] = self._workers.submit(self._compile, key, constraint)
        self.counts.asked[met] += 1
        return work

    def _compile(self, key: _Key, constraint: Constraint) -> _Result:
        try:
            vocabulary = self._built()
            began, began_own = time.perf_counter(), time.thread_time()
            result = vocabulary if isinstance(vocabulary, str) else _compiled(vocabulary, constraint)
            took, took_own = time.perf_counter() - began, time.thread_time() - began_own
            size = _BYTES_PER_GRAMMAR + int(_BYTES_PER_SECOND * took_own)
            with self._lock:
                self.counts.compile_seconds.observe(took)
                self.counts.compiled[key.kind.value, "refused" if isinstance(result, str) else "usable"] += 1
                self._kept.put(key, result, len(result) + len(key.text) if isinstance(result, str) else size)
            return result
        finally:
            with self._lock:
                del self._pending[key]

    def _done(self, answer: Future[Grammar], constraint: Constraint, key: _Key, work: Future[_Result]) -> None:
        if work.cancelled():
            answer.set_exception(_busy())
        elif (fault := work.exception()) is not None:
            answer.set_exception(fault)
        else:
            self._give(answer, constraint, key, work.result())

    def _give(self, answer: Future[Grammar], constraint: Constraint, key: _Key, result: _Result) -> None:
        if not answer.set_running_or_notify_cancel():
            return  # nobody waits any more
        if isinstance(result, str):
            answer.set_exception(_unusable(constraint, result))
        else:
            assert isinstance(self._vocabulary, GrammarVocabulary)
            discard = partial(self._discard, key)
            answer.set_result(CompiledGrammar(constraint, self._vocabulary, result, discard, self.counts))

    def _discard(self, key: _Key) -> None:
        with self._lock:
            self._kept.discard(key)


@contextmanager
def _deep_stacks() -> Generator[None]:
    """Threads that start in here have room for deep recursion. (So have others that happen to: it costs nothing.)"""
    usual = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(usual)


def _compiled(vocabulary: GrammarVocabulary, constraint: Constraint) -> _Result:
    """A grammar that has been tried out, or why there is none."""
    try:
        matcher = LLMatcher(vocabulary.tokens, grammar_source(constraint), limits=_LIMITS, log_level=0)
        _raise_fault(matcher)
        _try_out(matcher.deep_copy(), vocabulary)
        _refuse_slow(matcher.deep_copy())
    except ValueError as fault:
        reason = str(fault)
        return reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 1] + "…"
    return matcher


def _try_out(matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
    """Begins an answer and takes it back. Finds grammars without any answer, those too ambiguous to be parsed, and
    those that cannot roll back; and prepares the lexer for the first real answer. Raises ValueError."""
    began = time.thread_time()
    first = mask = _mask(matcher)
    ends = list(vocabulary.end_ids)
    steps = 0
    while steps < _PROBE_STEPS and time.thread_time() - began < _PROBE_SECONDS:
        allowed = np.unpackbits(mask, bitorder="little")
        allowed[ends] = 0
        ids = np.flatnonzero(allowed)
        if not len(ids):
            break
        matcher.consume_token(int(ids[(steps + 1) * 7919 % len(ids)]))
        _raise_fault(matcher)
        steps += 1
        if matcher.is_stopped():
            break
        mask = _mask(matcher)
    if steps and not (matcher.rollback(steps) and np.array_equal(_mask(matcher), first)):
        raise ValueError("it uses rules that cannot be taken back when a draft is rejected")


def _refuse_slow(matcher: LLMatcher) -> None:
    """Raises ValueError for a mask that takes long although the lexer knows the way."""
    began = time.thread_time()
    _mask(matcher)
    if time.thread_time() - began > _SLOW_MASK_SECONDS:
        raise ValueError("finding the tokens that it allows takes too long")


def _mask(matcher: LLMatcher) -> NDArray[np.uint8]:
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    _raise_fault(matcher)
    return mask


def _raise_fault(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(fault_text(matcher.get_error()))


def _unusable(constraint: Constraint, reason: str) -> RequestError:
    if constraint.kind is ConstraintKind.REGEX:
        reason = reason.removeprefix(_IN_ITS_GRAMMAR)
    return RequestError(f"{constraint.param}: {reason}", param=constraint.param, code="invalid_constraint")


def _busy() -> RequestError:
    return RequestError(
        "too many constraints are being compiled; try again later",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
        retry_after=1,
    )
