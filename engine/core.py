"""The engine without its thread: takes submissions and cancellations between steps, runs one step, collects outputs.

A step is: schedule -> run -> draw -> accept -> commit. Whatever goes wrong with one request ends that request only; a
step that fails as a whole commits nothing and is run again, sequence by sequence.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import TypeAlias

from ..kernels.bell import NO_BELL, ring
from ..kernels.errors import RequestError, StepCancelled, StepError, SurefootError
from ..kernels.sampling import Draw, DrawFault
from .active_request import ActiveRequest
from .admission import Admission
from .cost_curve import CostCurve
from .kv_cache import KvCache
from .log_fields import fields
from .metrics import Metrics
from .pooling import HIDDEN
from .request import Finish, FinishReason, Output, Submission
from .resources import Resources
from .runner import StepRunner
from .scheduler import Scheduler, SchedulerCounts
from .sequence import Plan, Rows
from .speculation.armed import Tracked
from .step_grammars import constrain, prescribe
from .step_speculation import StepSpeculation

_log = logging.getLogger("surefoot.engine")

LEARN_EVERY = 8  # decode steps of which one corrects the cost curve

# What a request's own sampler, detokenizer or stop strings may raise; anything else is a broken engine.
REQUEST_FAULTS = (SurefootError, ArithmeticError, LookupError, TypeError, ValueError)


Entries: TypeAlias = SequenceOf[Rows[ActiveRequest]]
Drafts: TypeAlias = SequenceOf[SequenceOf[int]]


def _keep() -> int:
    """Whoever drives the core looks into the outbox."""
    return NO_BELL


def server_error(message: str) -> RequestError:
    """A fault that is not the user's."""
    return RequestError(message, status=500, kind="server_error", code="engine_fault")


class EngineCore:
    """Requests, scheduler, caches and executor of one model. Used by one thread at a time."""

    def __init__(self, resources: Resources, metrics: Metrics) -> None:
        self._resources = resources
        self.metrics = metrics
        self.runner: StepRunner = resources.runner
        self.cost: CostCurve = resources.cost
        self.requests: dict[str, ActiveRequest] = {}
        self.outbox: list[tuple[Submission, Output]] = []
        self.hand_out: Callable[[], int] = _keep  # empties the outbox; returns the bell that is to be rung
        self.session = resources.make_speculation()
        self.speculation: StepSpeculation = self.session  # what steps call
        self.solo: str | None = None  # the request whose prefill is all that the running step does
        self.num_steps = 0
        self.counts = SchedulerCounts()
        self._admission = Admission(resources)
        self._num_constrained = self._num_pooled = 0  # of `requests`: what only they need is done for them only
        self.cache: KvCache
        self.scheduler: Scheduler[ActiveRequest]
        self._build()

    def _build(self) -> None:
        self.cache = self._resources.make_cache()
        self.scheduler = self._resources.make_scheduler(self.cache, self.counts)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.requests)

    # --- between steps ---------------------------------------------------------------------------------------------

    def add(self, submission: Submission, submitted_at: float) -> None:
        """Queues a request. What is wrong with it alone becomes its final output."""
        try:
            holding = self.cache.holding(submission.cache_salt)
            request = self._admission.open(submission, submitted_at, holding)
        except REQUEST_FAULTS as fault:
            error = (
                fault if isinstance(fault, RequestError) else server_error(f"the request could not be set up: {fault}")
            )
            finish = Finish(FinishReason.ERROR, error=error, prompt_tokens=len(submission.prompt_ids))
            self._post(submission, Output(finish=finish), submitted_at)
            return
        self.requests[submission.request_id] = request
        self._num_constrained += request.constrained is not None
        self._num_pooled += request.pooler is not None
        self.scheduler.add(request)

    def cancel(self, request_id: str) -> None:
        """Ends a request now; its blocks are available at once. Unknown ids are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._end(request, Output(finish=request.generation.finish(FinishReason.CANCELLED)))

    def cancel_all(self) -> None:
        """Ends every request."""
        for request_id in list(self.requests):
            self.cancel(request_id)

    def reset(self, reason: str) -> None:
        """After a broken invariant: ends every request with an error and starts with empty caches."""
        requests, self.requests = self.requests, {}
        self._num_constrained = self._num_pooled = 0
        self._build()
        for request in requests.values():
            self.speculation.release(request)
            self._post(
                request.submission,
                Output(finish=self._error_finish(request, server_error(reason))),
                request.submitted_at,
            )

    # --- one step --------------------------------------------------------------------------------------------------

    def step(self) -> str | None:
        """Runs one step, if there is work, and collects what it gave in `outbox`, which it has emptied before. Returns
        the step's kind."""
        speculation, scheduler = self.speculation, self.scheduler
        if self.outbox and self._may_be_slow():
            ring(self.hand_out())
        speculation.prepare(scheduler.running, bool(scheduler.waiting))
        if self._num_constrained:
            prescribe(scheduler.running, self.session.arming.verifies_certain)
        plan = scheduler.schedule()
        entries = plan.entries
        if not entries:
            return None
        started = time.monotonic()
        drafts = speculation.draft(entries)
        if self._num_constrained:
            drafts = constrain(entries, drafts)
        num_rows = plan.num_decodes + plan.num_prefill_rows + sum(map(len, drafts))
        if plan.num_prefill_rows:
            self._note_first_rows(entries, started)
            if len(entries) == 1:
                self.solo = entries[0].sequence.submission.request_id
        self._run(entries, drafts, may_retry=True)
        self.solo = None
        kind = plan.kind
        self._book(plan, kind, num_rows, time.monotonic() - started)
        speculation.finish(len(entries), num_rows, plan.num_prefill_rows)
        return kind

    def _may_be_slow(self) -> bool:
        """Whether drafters or grammars may work before the step: more than the outputs of the last one should wait."""
        return self._num_constrained > 0 or self.session.slow

    def _note_first_rows(self, entries: Entries, now: float) -> None:
        for rows in entries:
            request = rows.sequence
            if not request.first_row_at:
                request.first_row_at = now
                request.generation.cached_tokens = request.cached_tokens or 0
                self.metrics.prompt_tokens += request.num_prompt
                self.metrics.queue.observe(now - request.submitted_at)

    def _book(self, plan: Plan[ActiveRequest], kind: str, num_rows: int, seconds: float) -> None:
        self.num_steps += 1
        if plan.num_prefill_rows or not self.num_steps % LEARN_EVERY:
            self._learn(plan, num_rows, seconds)
        self.metrics.step_rows.observe(num_rows)
        self.metrics.step_seconds[kind].observe(seconds)

    def _learn(self, plan: Plan[ActiveRequest], num_rows: int, seconds: float) -> None:
        context = sum([rows.num_rows * rows.start for rows in plan.entries]) // num_rows
        num_logits = (
            num_rows - plan.num_prefill_rows + sum([rows.num_logits for rows in plan.entries[plan.num_decodes :]])
        )
        self.cost.observe(num_rows, num_logits, context, seconds)

    def _run(self, entries: Entries, drafts: Drafts, may_retry: bool) -> None:
        runner = self.runner
        batch = runner.batch(entries, drafts, self._taps(entries))
        drawing, others = self._divided(entries, drafts)
        requests = [entries[number].sequence.draw for number in drawing]
        bell = self.hand_out() if self.outbox else NO_BELL  # who is woken by it needs the GIL, and gets it now
        try:
            results = runner.step(batch, requests, bell)
        except StepCancelled:
            return  # the cancellation itself is in the inbox; if it was somebody else's, the rows run again
        except StepError as fault:
            self._run_one_by_one(entries, drafts, fault, may_retry)
            return
        for number in others:
            self._read_prompt(number, entries[number])
        now = time.monotonic()
        for number, result in zip(drawing, results, strict=True):
            rows = entries[number]
            if rows.sequence.running:  # its prompt's scores have not ended it
                self._accept(number, rows, result, now)

    def _divided(self, entries: Entries, drafts: Drafts) -> tuple[list[int], list[int]]:
        """The entries that draw, ready to, and those whose prompts are read: a prompt that is scored may be both."""
        drawing: list[int] = []
        others: list[int] = []
        for number, rows in enumerate(entries):
            request = rows.sequence
            draws = self._draws(rows)
            if draws:
                draw = request.draw
                draw.first_row = self.runner.first_logits[number] + rows.num_logits - 1
                draw.position = request.generation.num_output
                draw.drafts = drafts[number] if drafts else ()
                drawing.append(number)
            if not draws or request.scores_prompt:
                others.append(number)
        return drawing, others

    @staticmethod
    def _draws(rows: Rows[ActiveRequest]) -> bool:
        """Whether a token is drawn: not for a grammar that gave up, or that only an empty answer matches."""
        request = rows.sequence
        constrained = request.constrained
        return rows.draws and request.generates and (constrained is None or constrained.goes_on)

    def _taps(self, entries: Entries) -> tuple[str, ...]:
        """What the step must hand out: the hidden rows that speculation or an embedding reads."""
        taps = self.speculation.taps
        if self._num_pooled and any(rows.sequence.pooler is not None for rows in entries):
            return tuple(dict.fromkeys((*taps, HIDDEN)))
        return taps

    def _run_one_by_one(self, entries: Entries, drafts: Drafts, fault: StepError, may_retry: bool) -> None:
        """A step failed and committed nothing: gives each of its sequences a step of its own. Same rows, same bits."""
        if not may_retry:
            self._fail(entries[0].sequence, server_error(f"the model could not be evaluated: {fault}"))
            return
        _log.error("a step of %d sequences failed, running them one by one: %s", len(entries), fault)
        self.metrics.step_faults += 1
        for number, rows in enumerate(entries):
            self._run([rows], drafts[number : number + 1], may_retry=False)

    def _read_prompt(self, number: int, rows: Rows[ActiveRequest]) -> None:
        """Rows whose logits or hidden rows are read, or that only fill the cache: commits those that do not draw."""
        request = rows.sequence
        if request.scores_prompt and not self._score(rows, self.runner.first_logits[number]):
            return
        if request.pooler is not None:
            request.pooler.feed(self.runner.rows(HIDDEN, number, rows.num_rows), rows.start)
        if self._draws(rows):
            return
        if rows.draws and request.generates:
            self._end_by_grammar(request)
            return
        self.scheduler.advance(request, rows.start + rows.num_rows)
        if rows.draws:
            self._finish_prompt(request)

    def _accept(self, number: int, rows: Rows[ActiveRequest], result: list[Draw] | DrawFault, now: float) -> None:
        """Takes a request's draws as far as they go, commits what they were drawn from, gives out what is certain."""
        request = rows.sequence
        if isinstance(result, DrawFault):
            self._fail(request, server_error(f"no token could be drawn: {result.reason}"))
            return
        try:
            taken, output = request.generation.accept(result)
            token_ids = [result[0].token_id] if taken == 1 else [draw.token_id for draw in result[:taken]]
            if request.sampler_reads:
                request.sampler.commit(token_ids)
            if request.constrained is not None:
                request.constrained.commit(token_ids, request.generation, output)
        except REQUEST_FAULTS as fault:
            error = server_error(f"the answer could not be continued: {fault!r}")
            self._fail(request, fault if isinstance(fault, RequestError) else error)
            return
        request.tokens += token_ids
        self.scheduler.advance(request, rows.start + rows.num_rows + taken - 1)
        accepted = len(result) - 1
        certain = 0
        if request.constrained is not None:
            certain = min(accepted, request.constrained.num_certain)
            accepted = min(accepted, request.constrained.num_proposed)
            self.metrics.prescribed_tokens += min(certain, taken)
        self.speculation.accepted(request, rows.start, accepted, self.runner.offsets[number], certain)
        self._time_tokens(request, taken, now)
        if output.finish is not None:
            self._end(request, output)
        elif output.token_ids or output.text or output.prompt_draws is not None:
            self.outbox.append((request.submission, output))

    def _time_tokens(self, request: ActiveRequest, count: int, now: float) -> None:
        self.metrics.generation_tokens += count
        if request.last_token_at:
            self.metrics.inter_token.observe((now - request.last_token_at) / count, count)
        else:
            request.first_token_at = now
            self.metrics.first_token.observe(now - request.submitted_at)
            if count > 1:
                self.metrics.inter_token.observe(0.0, count - 1)
        request.last_token_at = now

    # --- prompts that are scored -----------------------------------------------------------------------------------

    def _score(self, rows: Rows[ActiveRequest], first: int) -> bool:
        """Log-probabilities of the prompt tokens that follow these rows. False if the request ended over it."""
        request = rows.sequence
        num_top = request.submission.params.prompt_logprobs
        assert num_top is not None
        for offset in range(rows.num_rows):
            position = rows.start + offset + 1
            if position == request.num_prompt:
                break
            draw = self.runner.score(first + offset, request.tokens[position], num_top)
            if draw.logprob is None or math.isnan(draw.logprob):
                self._fail(request, server_error("the model gave logits that are not numbers"))
                return False
            request.prompt_draws[position] = draw
        if rows.start + rows.num_rows >= request.num_prompt:
            request.scores_prompt = False
            request.generation.prompt_draws = request.prompt_draws
        return True

    def _finish_prompt(self, request: ActiveRequest) -> None:
        """A request without tokens to generate ends with its prompt."""
        _, output = request.generation.accept(())
        reason = FinishReason.LENGTH
        if request.pooler is not None:
            reason = FinishReason.POOLED
            output.embedding = request.pooler.vector()
            if not math.isfinite(output.embedding.sum()):
                self._fail(request, server_error("the model gave hidden rows that are not numbers"))
                return
            self.metrics.embedding_tokens += request.num_prompt
        output.finish = request.generation.finish(reason)
        self._end(request, output)

    def _end_by_grammar(self, request: ActiveRequest) -> None:
        """Nothing is to be drawn: the grammar gave up, or only an empty answer matches it."""
        assert request.constrained is not None
        if request.constrained.fault is not None:
            self._fail(request, request.constrained.fault)
            return
        _, output = request.generation.accept(())
        request.generation.end(FinishReason.STOP, output)
        self._end(request, output)

    # --- endings ---------------------------------------------------------------------------------------------------

    def _fail(self, request: ActiveRequest, error: RequestError) -> None:
        request_id = request.submission.request_id
        _log.error("request %s ended: %s", request_id, error.message, extra=fields(choice_id=request_id))
        self._end(request, Output(finish=self._error_finish(request, error)))

    @staticmethod
    def _error_finish(request: ActiveRequest, error: RequestError) -> Finish:
        generation = request.generation
        return Finish(
            FinishReason.ERROR, None, error, request.num_prompt, generation.cached_tokens, generation.num_output
        )

    def _end(self, request: ActiveRequest, output: Output) -> None:
        """The one place where an accepted request ends."""
        del self.requests[request.submission.request_id]
        self._num_constrained -= request.constrained is not None
        self._num_pooled -= request.pooler is not None
        self.scheduler.remove(request)
        tracked = self.speculation.release(request)
        if tracked is not None and output.finish is not None:
            self._report(request, tracked, output)
        if output.finish is not None:
            output.finish = replace(output.finish, queue_s=request.queue_s, first_token_s=request.first_token_s)
        self._post(request.submission, output, request.submitted_at)

    def _report(self, request: ActiveRequest, tracked: Tracked, output: Output) -> None:
        """What speculation did for a request: a log line if it was armed, part of its last output if it asked."""
        assert output.finish is not None
        governor = self.session.arming.governor
        if tracked.report.algorithms and _log.isEnabledFor(logging.INFO):
            rates = [f"{1000 * rate:.2f}" if rate is not None else "unknown" for rate in governor.rates]
            view = f"governor {governor.name}: ms per token plain {rates[0]}, speculative {rates[1]}"
            about = fields(choice_id=request.request_id, speculation=tracked.report.as_dict())
            line = tracked.report.line()
            _log.info("request %s: speculation by %s; %s", request.request_id, line, view, extra=about)
        if tracked.wishes.report:
            report = {**tracked.report.as_dict(), "declined": tracked.declined}
            report["governor"] = {"name": governor.name, **governor.snapshot()}
            output.finish = replace(output.finish, speculation=report)

    def _post(self, submission: Submission, output: Output, submitted_at: float) -> None:
        assert output.finish is not None
        self.metrics.finished(output.finish.reason.value)
        self.metrics.whole_request.observe(time.monotonic() - submitted_at)
        self.outbox.append((submission, output))
