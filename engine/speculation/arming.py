"""Who speculates with what: the policy in force, the algorithm it names, the governor, every request's armed state.

A request is armed late, at its first decode step that may speculate, over whatever its cache holds by then: a prompt it
prefilled in one chunk or in many, an adopted prefix, tokens served while others ran. Knows nothing of steps.
"""

from __future__ import annotations

import logging

from ..kv_cache import KvCache
from ..log_fields import fields
from .armed import Armed, SpeculativeSequence, Tracked
from .contract import Speculator, Target
from .counts import SpeculationCounts
from .draft_resources import DraftChoice
from .governor import create_governor
from .governor.contract import CostCurve, Governor
from .policy import SpeculationPolicy, min_confidence, window
from .registry import Declined, Registry, Resources

_log = logging.getLogger(__name__)


class Arming:
    """Policy, speculators, governors and armed requests of one target."""

    def __init__(
        self,
        target: Target,
        curve: CostCurve,
        policy: SpeculationPolicy,
        registry: Registry,
        resources: Resources,
        max_running: int,
    ) -> None:
        self.target = target
        self.max_running = max_running
        self.policy = policy
        self.registry = registry
        self.counts = SpeculationCounts()
        self.speculators: tuple[Speculator, ...] = ()  # those that cost nothing first
        self.paid = False  # one of them takes device time
        self.patience = 1  # tokens that a request has emitted before anybody is armed for it
        self.declined: str | None = None  # why nothing is armed under this policy
        self.tracked: dict[str, SpeculativeSequence] = {}  # armed or declined, not ended
        self._curve = curve
        self._resources = resources
        self._made: dict[str, Speculator | Declined] = {}
        self._governors: dict[str, Governor] = {}
        self.governor = self._governor(policy.governor)
        self._settle()

    def apply(self, policy: SpeculationPolicy) -> None:
        """Between steps. Running requests go on; what no longer fits is disarmed, the rest keeps its state."""
        changed = (policy.enabled, policy.type, policy.governor) != (
            self.policy.enabled,
            self.policy.type,
            self.policy.governor,
        )
        self.policy = policy
        if changed:
            for sequence in self.tracked.values():
                if sequence.speculation is not None:
                    self._close_all(sequence.speculation)
                    sequence.speculation.disarmed.clear()
        self.governor = self._governor(policy.governor)
        self._settle()

    def caches(self) -> list[KvCache]:
        """What drafters keep of requests beyond their end."""
        choice = self._resources.draft_model
        return [choice.runtime.cache] if isinstance(choice, DraftChoice) else []

    def verifies_certain(self, sequence: SpeculativeSequence) -> bool:
        """Whether tokens that a grammar prescribes may be verified as drafts of a request. They are no guesses, so no
        policy is asked; but a request may want plain steps, and a target may have none but plain ones."""
        wishes = sequence.wishes
        return wishes.enabled and wishes.draft_tokens != 0 and self.target.verdict.refusal is None

    def not_effective(self) -> dict[str, str]:
        """Settings of the policy that change nothing here, and why. Empty where all do what they say."""
        policy, reasons = self.policy, dict[str, str]()
        if not policy.enabled:
            return reasons
        if not self.speculators:
            return {"type": self.declined or "no algorithm"}
        most = max(speculator.capabilities.max_draft_tokens for speculator in self.speculators)
        if policy.draft_tokens is not None and policy.draft_tokens > most:
            reasons["draft_tokens"] = f"at most {most} tokens are drafted"
        if policy.max_batch > self.max_running:
            reasons["max_batch"] = f"at most {self.max_running} requests run at the same time"
        return reasons

    def _governor(self, name: str) -> Governor:
        """Kept while the process lives, so that switching forth and back forgets nothing."""
        if name not in self._governors:
            self._governors[name] = create_governor(name, self._curve)
        return self._governors[name]

    def _settle(self) -> None:
        """Finds out what the policy's type means on this target."""
        self.speculators, self.declined, self.paid = (), None, False
        if not self.policy.enabled:
            self.declined = "speculation is switched off"
            return
        serving: list[Speculator] = []
        reasons: list[str] = []
        has_weights = False
        for name in self.registry.members(self.policy.type):
            weight_free = self.registry.entries[name].weight_free
            if has_weights and not weight_free:
                continue  # one drafter with weights is enough; what costs nothing goes with it
            made = self._make(name)
            if isinstance(made, Declined):
                reasons.append(made.reason if name == self.policy.type else f"{name}: {made.reason}")
            else:
                serving.append(made)
                has_weights = has_weights or not weight_free
        self.speculators = tuple(sorted(serving, key=lambda speculator: speculator.capabilities.paid))
        self.paid = any(speculator.capabilities.paid for speculator in serving)
        self.patience = min([speculator.capabilities.patience for speculator in serving], default=1)
        if not serving:
            self.declined = "; ".join(reasons) or "no algorithm is registered"

    def _make(self, name: str) -> Speculator | Declined:
        """The algorithm, made once. Why it cannot serve is logged once, and not at all if nobody asked for it."""
        if name not in self._made:
            made = self._made[name] = self.registry.create(name, self.target, self._resources)
            if isinstance(made, Declined):
                level = logging.WARNING if name == self.policy.type or self.target.verdict.refusal else logging.INFO
                _log.log(level, "speculation %r cannot serve %s: %s", name, self.target.name, made.reason)
        return self._made[name]

    def arm(self, sequence: SpeculativeSequence) -> Tracked:
        """Arms a request, at its first decode step that may speculate and whenever the policy has changed since."""
        tracked = sequence.speculation
        if tracked is None:
            tracked = sequence.speculation = Tracked(sequence.wishes)
            self.tracked[sequence.request_id] = sequence
        tracked.generation = self.policy.generation
        present = {id(armed.speculator): armed for armed in tracked.armed}
        reason: str | None = None
        for speculator in self.speculators:
            capabilities = speculator.capabilities
            limit = window(
                self.policy, tracked.wishes, capabilities, self.target.verdict, adaptive=self.governor.adaptive
            )
            armed = present.get(id(speculator))
            why_not = self._reason_against(sequence, limit, speculator)
            if why_not is not None:
                reason = reason or why_not
                if armed is not None:
                    self._close(tracked, armed)
                continue
            if armed is None and capabilities.name not in tracked.disarmed:
                armed = self._open(sequence, tracked, speculator)
            if armed is not None:
                armed.limit = limit
                armed.context.min_confidence = min_confidence(self.policy, capabilities)
        if tracked.armed:
            tracked.declined = None
        elif reason is not None and reason != tracked.declined:
            self.counts.declined[reason] += 1
            tracked.declined = reason
        return tracked

    @staticmethod
    def _reason_against(sequence: SpeculativeSequence, limit: int, speculator: Speculator) -> str | None:
        needs = speculator.capabilities
        if not sequence.wishes.enabled:
            return "the request switched it off"
        if limit == 0:
            return "draft_tokens is 0"
        if sequence.max_length - sequence.num_prompt < 2:
            return "the request cannot emit two tokens"
        if needs.handles_own_prefill or ((needs.needs_hidden or needs.needs_taps) and not needs.can_arm_after_gap):
            return "the algorithm needs the prompt's hidden rows"
        return None

    def _open(self, sequence: SpeculativeSequence, tracked: Tracked, speculator: Speculator) -> Armed | None:
        try:
            armed = Armed(speculator, self.governor, sequence)
        except Exception as fault:  # noqa: BLE001  (an algorithm's fault must not end the request)
            self._note_disarmed(sequence, tracked, speculator, "raised", f"open raised {fault!r}")
            return None
        tracked.armed.append(armed)
        name = speculator.capabilities.name
        if name not in tracked.report.algorithms:
            tracked.report.algorithms.append(name)
        self.counts.armed += 1
        return armed

    def disarm(self, sequence: SpeculativeSequence, armed: Armed, kind: str, fault: str) -> None:
        """An algorithm broke its contract for this request. The request goes on without it."""
        tracked = sequence.speculation
        assert tracked is not None
        self._close(tracked, armed)
        self._note_disarmed(sequence, tracked, armed.speculator, kind, fault)

    def _note_disarmed(
        self, sequence: SpeculativeSequence, tracked: Tracked, speculator: Speculator, kind: str, fault: str
    ) -> None:
        about = fields(choice_id=sequence.request_id)
        _log.error("request %s: speculation is disarmed: %s", sequence.request_id, fault, extra=about)
        self.counts.disarmed[kind] += 1
        tracked.disarmed.add(speculator.capabilities.name)
        if not tracked.armed:
            tracked.declined = f"disarmed: {fault}"

    def _close_all(self, tracked: Tracked) -> None:
        for armed in list(tracked.armed):
            self._close(tracked, armed)

    def _close(self, tracked: Tracked, armed: Armed) -> None:
        if armed not in tracked.armed:
            return
        tracked.armed.remove(armed)
        armed.ready = False
        self.counts.armed -= 1
        self.governor.close(armed.ticket)
        try:
            armed.speculator.close(armed.state)
        except Exception:  # noqa: BLE001  (an algorithm's fault must not end the request)
            _log.exception("closing a drafter's state failed")

    def release(self, sequence: SpeculativeSequence) -> Tracked | None:
        """The request has ended. Returns what its speculation did, if it was ever considered for any or asks for it."""
        tracked = sequence.speculation
        if tracked is not None:
            sequence.draft_window = 0
            sequence.speculation = None
            del self.tracked[sequence.request_id]
            for armed in tuple(tracked.armed):
                self.observe(sequence, armed)
            self._close_all(tracked)
        elif sequence.wishes.report:
            tracked = Tracked(sequence.wishes, declined=self.declined or "it ended before a draft could have paid")
        return tracked

    def observe(self, sequence: SpeculativeSequence, armed: Armed) -> None:
        """Tells the governor what an algorithm's own scores were since it was told last: before it chooses, and at the
        end. Steps without a draft need not know."""
        if not armed.speculator.capabilities.scores_itself:
            return
        try:
            scores = armed.speculator.take_scores(armed.state)
        except Exception as fault:  # noqa: BLE001  (an algorithm's fault must not end the request)
            self.disarm(sequence, armed, "raised", f"take_scores raised {fault!r}")
            return
        self.governor.observe(armed.ticket, scores)
        for _, trials, hits in scores.output:
            self.counts.shadow_hits += hits
            self.counts.shadow_misses += trials - hits
