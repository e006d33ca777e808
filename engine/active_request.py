"""A request while the engine has it: its sequence, its answer so far, its sampling state and its clock."""

from __future__ import annotations

from ..kernels.backend import DrawRequest, Sampler
from ..kernels.sampling import Draw, SamplingSpec
from .constrained import ConstrainedAnswer
from .generation import Generation
from .grammar.matcher import Matcher
from .kv_cache import Holding
from .pooling import make_pooler
from .request import Submission
from .sequence import Sequence
from .speculation.armed import Tracked
from .speculation.policy import RequestSpeculation


class ActiveRequest(Sequence):
    """What the scheduler ranks is the request itself; `draw` is filled anew in every step that draws for it."""

    __slots__ = (
        "constrained",
        "draw",
        "first_row_at",
        "first_token_at",
        "generation",
        "last_token_at",
        "pooler",
        "prompt_draws",
        "sampler",
        "sampler_reads",
        "sampling",
        "speculation",
        "submission",
        "submitted_at",
    )

    def __init__(
        self,
        submission: Submission,
        max_tokens: int,
        holding: Holding,
        generation: Generation,
        sampling: SamplingSpec,
        sampler: Sampler,
        constrained: ConstrainedAnswer | None,
        arrival: int,
        submitted_at: float,
    ) -> None:
        scores_prompt = submission.params.prompt_logprobs is not None
        self.pooler = None if submission.pooling is None else make_pooler(submission.pooling)
        super().__init__(
            submission.prompt_ids,
            max_tokens,
            holding,
            priority=submission.priority,
            arrival=arrival,
            scores_prompt=scores_prompt,
            adopts=self.pooler is None or not self.pooler.needs_all_rows,
        )
        self.submission = submission
        self.generation = generation
        self.sampling = sampling
        self.sampler = sampler
        self.sampler_reads = sampler.reads_output  # it has to know what is drawn
        self.constrained = constrained  # None: any text will do
        self.speculation: Tracked | None = None
        self.draw = DrawRequest(sampler, 0, 0)
        self.prompt_draws: list[Draw | None] = [None] * self.num_prompt if scores_prompt else []
        self.submitted_at = submitted_at
        self.first_row_at = 0.0  # monotonic seconds; 0: no row has been scheduled yet
        self.first_token_at = 0.0  # 0: no token has been drawn yet
        self.last_token_at = 0.0  # 0: no token has been drawn yet

    @property
    def queue_s(self) -> float | None:
        """Seconds from submission to the first scheduled row."""
        return self.first_row_at - self.submitted_at if self.first_row_at else None

    @property
    def first_token_s(self) -> float | None:
        """Seconds from submission to the first token."""
        return self.first_token_at - self.submitted_at if self.first_token_at else None

    @property
    def request_id(self) -> str:
        """The submission's."""
        return self.submission.request_id

    @property
    def cache_salt(self) -> bytes:
        """The submission's."""
        return self.submission.cache_salt

    @property
    def matcher(self) -> Matcher | None:
        """How far the answer has come in its grammar, if it has one."""
        return None if self.constrained is None else self.constrained.matcher

    @property
    def wishes(self) -> RequestSpeculation:
        """What it asks of speculation."""
        return self.submission.speculation
