"""Native sampling behind the types of kernels/sampling.py and kernels/backend.py. The arithmetic is in sampler.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..backend import DrawRequest, StepBatch
from ..sampling import NAN_ROW, NOTHING_ALLOWED, Draw, DrawFault, SamplingSpec
from . import _ops


def sampler(spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> _ops.Sampler:
    """A request's native sampling state. Raises RequestError for a spec that cannot be sampled under."""
    spec.check(prompt_ids, vocab_size)
    return _ops.Sampler(
        seed=spec.seed & 0xFFFFFFFFFFFFFFFF,
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        min_p=spec.min_p,
        repetition_penalty=spec.repetition_penalty,
        presence_penalty=spec.presence_penalty,
        frequency_penalty=spec.frequency_penalty,
        logit_bias=sorted(spec.summed_bias().items()),
        suppress_ids=list(spec.suppress_ids),
        suppress_until=spec.suppress_until,
        num_logprobs=spec.num_logprobs,
        prompt_ids=np.asarray(prompt_ids if spec.reads_prompt else (), np.int32),
        vocab_size=vocab_size,
    )


Logits: TypeAlias = _ops.Executor | NDArray[np.float32]  # of the executor's last step, or [rows, vocabulary]


class Drawer:
    """Draws for the steps of one backend, on its threads."""

    def __init__(self, runtime: _ops.Runtime) -> None:
        self._native = _ops.Drawer(runtime, Draw, NAN_ROW, NOTHING_ALLOWED)

    def draw(self, logits: Logits, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        """Draws for all requests in one native call, without the GIL."""
        return self._native.draw(logits, requests if isinstance(requests, list) else list(requests))

    def step(
        self, executor: _ops.Executor, batch: StepBatch, taps: list[int], requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault] | int:
        """Rings the bell, runs the batch, draws from its logits: one native call. The status of a step not done."""
        return self._native.step(
            executor,
            batch.token_ids,
            batch.positions,
            batch.row_offsets,
            batch.slots,
            batch.logits_rows,
            taps,
            requests,
            bell,
        )

    def logprobs(self, logits: Logits, row: int, token_id: int, num_top: int) -> Draw:
        """Log-probabilities of `token_id` and the `num_top` best of a row, as `draw` would report them."""
        return self._native.logprobs(logits, row, token_id, num_top)
