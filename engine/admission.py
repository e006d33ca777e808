"""From a submission to a request that steps can run: its sequence, sampler, detokenizer, stops and grammar."""

from __future__ import annotations

from ..models.tokenizer import StreamDecoder, WholeTexts
from .active_request import ActiveRequest
from .constrained import ConstrainedAnswer
from .generation import Generation, end_ids, sampling_spec
from .kv_cache import Holding
from .request import Submission
from .resources import Resources
from .stop_strings import StopStrings


class Admission:
    """Opens the requests of one model, and numbers them as they arrive."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._texts = WholeTexts(resources.model.tokenizer)
        self._arrivals = 0

    def open(self, submission: Submission, submitted_at: float, holding: Holding) -> ActiveRequest:
        """The request. Raises what its own sampler, detokenizer or grammar raise."""
        model, params = self._resources.model, submission.params
        prompt_ids = submission.prompt_ids
        num_prompt = len(prompt_ids)
        max_tokens = min(params.max_tokens, self._resources.context_length - num_prompt)
        end_of_generation = frozenset(model.tokenizer.end_of_generation_ids)
        generation = Generation(
            params,
            num_prompt,
            max_tokens,
            end_of_generation,
            StreamDecoder(model.tokenizer, prompt_ids, visible_ids=params.visible_ids, texts=self._texts),
            StopStrings(params.stop) if params.stop else None,
        )
        sampling = sampling_spec(params, end_ids(params, end_of_generation))
        sampler = self._resources.backend.sampler(sampling, prompt_ids, model.program.vocab_size)
        grammar = params.grammar
        constrained = None if grammar is None else ConstrainedAnswer(grammar.start(may_end=not params.ignore_eos))
        self._arrivals += 1
        return ActiveRequest(
            submission,
            max_tokens,
            holding,
            generation,
            sampling,
            sampler,
            constrained,
            self._arrivals,
            submitted_at,
        )
