"""Ten thousand short requests that are armed, parked, cancelled and caught by changes of the policy: right answers, and
afterwards memory, slots, blocks and everything kept per request are back where they were."""

from __future__ import annotations

import gc
import random
import sys

import psutil
import pytest
from engine_drive import Answer, Drive, params
from harness import ORACLE

from surefoot.engine.request import FinishReason, GenerationParams
from surefoot.engine.speculation.draft_model import DraftModelSpeculator
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import load_model

WARM_UP, NUM_REQUESTS = 1500, 10_000
PLAIN = SpeculationPolicy(enabled=False)


def opened(policy: SpeculationPolicy, **config: object) -> Drive:
    """An engine whose pools are full after a few hundred requests."""
    model = load_model(ORACLE / "llama" / "model.gguf")
    return Drive(
        model,
        create_backend("cpu", 1),
        kv_memory=1 << 20,
        context_length=128,
        max_running=4,
        prefill_chunk=32,
        speculation=policy,
        poison_freed=False,
        **config,
    )


def requests() -> list[tuple[list[int], GenerationParams]]:
    pick = random.Random(6)
    made: list[tuple[list[int], GenerationParams]] = []
    for seed in range(24):
        base = [pick.randrange(1, 200) for _ in range(pick.randrange(1, 12))]
        made.append(
            (
                (base * 8)[: pick.randrange(1, 60)],
                params(
                    max_tokens=pick.randrange(1, 20),
                    seed=seed,
                    temperature=pick.choice([0.0, 0.8, 1.0]),
                    logit_bias=((40, 90.0), (41, 90.0)),
                    frequency_penalty=0.7,
                    ignore_eos=True,
                ),
            )
        )
    return made


class Churn:
    """Keeps an engine busy and checks what it answers."""

    def __init__(self, engine: Drive) -> None:
        self.engine = engine
        self.pick = random.Random(11)
        self.cases = requests()
        plain = opened(PLAIN, prefix_cache=False)
        self.expected = [plain.one(ids, request).token_ids for ids, request in self.cases]
        self.num_whole = self.num_cancelled = self.num_changes = 0

    def serve(self, count: int) -> None:
        """So many requests until all have ended: for a while one at a time, for a while up to six."""
        engine, pick = self.engine, self.pick
        open_answers: dict[str, tuple[int, Answer]] = {}
        started = 0
        while started < count or open_answers:
            most = 6 if started // 40 % 3 == 0 else 1
            while started < count and len(open_answers) < most and pick.random() < 0.6:
                case = pick.randrange(len(self.cases))
                name = f"r{started}"
                ids, request = self.cases[case]
                open_answers[name] = case, engine.add(ids, request, name=name, salt=bytes([pick.randrange(50)]))
                started += 1
            engine.step()
            if open_answers and pick.random() < 0.02:
                engine.cancel(pick.choice(list(open_answers)))
                engine.step()
            if pick.random() < 0.02:
                self._change_policy()
            for name in [name for name, (_, answer) in open_answers.items() if answer.finish is not None]:
                self._judge(*open_answers.pop(name))
                del engine.answers[name]

    def _judge(self, case: int, answer: Answer) -> None:
        expected = self.expected[case]
        if answer.done.reason is FinishReason.CANCELLED:
            self.num_cancelled += 1
            assert answer.token_ids == expected[: len(answer.token_ids)]
        else:
            self.num_whole += 1
            assert (answer.done.reason, answer.token_ids) == (FinishReason.LENGTH, expected)

    def _change_policy(self) -> None:
        pick = self.pick
        body = {
            "enabled": pick.random() < 0.85,
            "type": pick.choice(["auto", "ngram", "draft-model"]),
            "draft_tokens": pick.choice([None, None, 1, 5, 0]),
            "governor": pick.choice(["cost", "probe", "off"]),
            "max_batch": pick.choice([1, 2, 4]),
        }
        self.engine.core.session.change({key: body[key] for key in pick.sample(list(body), 2)})
        self.num_changes += 1


def check_nothing_is_held(engine: Drive) -> None:
    engine.check_idle()
    session = engine.core.session
    assert not session.arming.tracked and session.counts.armed == 0
    assert not engine.core.requests and not engine.core.outbox and not engine.answers
    (drafter,) = (made for made in session.arming._made.values() if isinstance(made, DraftModelSpeculator))
    assert all(pool.num_held == 0 for pool in drafter._runtime.cache.pools)
    assert drafter._runtime.cache.num_free_slots == engine.config.max_running


def weighed() -> tuple[int, int, int]:
    """Objects of the collector, blocks of the allocator, resident bytes."""
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks(), psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.skipif(not has_native_module(), reason="the native module is not built")
def test_ten_thousand_requests_leave_nothing_behind() -> None:
    engine = opened(SpeculationPolicy(), draft_model=str(ORACLE / "llama" / "model-q8_0.gguf"))
    churn = Churn(engine)
    engine.core.session.change({"type": "draft-model"})  # opens the drafter, whatever the changes will be
    churn.serve(WARM_UP)
    check_nothing_is_held(engine)
    objects, blocks, resident = weighed()
    churn.serve(NUM_REQUESTS)
    check_nothing_is_held(engine)
    more_objects, more_blocks, more_resident = weighed()
    assert abs(more_objects - objects) < 300
    assert abs(more_blocks - blocks) < 3000
    assert more_resident - resident < 8 << 20
    counts = engine.core.session.counts
    assert len(counts.no_draft) + len(counts.declined) + len(counts.disarmed) < 20, "reasons are few and fixed"
    assert not counts.disarmed
    assert churn.num_cancelled > 200 and churn.num_changes > 200
    assert churn.num_whole + churn.num_cancelled == WARM_UP + NUM_REQUESTS
    steps = {kind: count for kind, count in counts.steps.items() if kind != "prescribed"}  # nobody asked for a grammar
    assert min(steps.values()) > 500 and counts.parks > 50, counts.steps
    assert counts.accepted["ngram"] > 100 and counts.accepted["draft-model"] > 100
