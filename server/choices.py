"""What the answers of all APIs share: finish reasons, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.request import Draw, Finish, FinishReason
from ..kernels.errors import RequestError
from .ports import Tokenizer

_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def check_finish(finish: Finish) -> None:
    """Raises the error of a choice that failed or was cancelled from below."""
    if finish.reason is FinishReason.ERROR and finish.error is not None:
        raise finish.error
    if finish.reason is FinishReason.CANCELLED:
        raise RequestError("The request was ended by the server", code="cancelled", status=503, kind="api_error")


def finish_reason(finish: Finish) -> str:
    """OpenAI's word for a finish. Raises as `check_finish`."""
    check_finish(finish)
    return _FINISH_REASONS[finish.reason]


ENDING = ("stop_reason", "speculation")  # what a choice's last chunk may have beside the finish reason


def ending(finish: Finish) -> dict[str, object]:
    """Our own fields of a choice's last chunk: what stopped it and, if asked for, what speculation did."""
    fields: dict[str, object] = {"stop_reason": finish.stop_reason}
    return fields if finish.speculation is None else {**fields, "speculation": finish.speculation}


class TokenNames:
    """How log-probabilities name tokens: text, `bytes:\\xNN` where that is not whole characters, or `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def __call__(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self.data(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def data(self, token_id: int) -> bytes:
        """The bytes a token stands for; of a control token, its name."""
        return self._tokenizer.token_bytes(token_id, special=True)


def _known(logprob: float | None) -> float:
    """-inf has no JSON form; OpenAI writes -9999."""
    assert logprob is not None, "log-probabilities were asked for"
    return max(logprob, -9999.0)


def chat_logprobs(draws: Sequence[Draw], names: TokenNames) -> dict[str, object]:
    """`logprobs` of a chat choice: one entry per token."""

    def entry(token_id: int, logprob: float | None) -> dict[str, object]:
        return {"token": names(token_id), "logprob": _known(logprob), "bytes": list(names.data(token_id))}

    content = [
        {**entry(draw.token_id, draw.logprob), "top_logprobs": [entry(*top) for top in draw.top]} for draw in draws
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(draws: Sequence[Draw | None], num_top: int, names: TokenNames) -> list[object]:
    """`prompt_logprobs` as vLLM writes it: per prompt token the best ones and its own, by id; null for the first. The
    rank of a token that is not among the best is null."""

    def entry(draw: Draw) -> dict[str, object]:
        best = draw.top[:num_top]
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(best, 1)}
        return {
            str(token_id): {
                "logprob": _known(logprob),
                "rank": ranks.get(token_id),
                "decoded_token": names(token_id),
            }
            for token_id, logprob in dict([(draw.token_id, draw.logprob), *best]).items()
        }

    return [None if draw is None else entry(draw) for draw in draws]


@dataclass(frozen=True, slots=True)
class Judged:
    """A token with its draw, which a prompt's first token has not, and where the text has its first character."""

    token_id: int
    draw: Draw | None
    offset: int


class CompletionLogprobs:
    """`logprobs` of a completion choice: parallel lists."""

    def __init__(self, names: TokenNames, num_top: int) -> None:
        self._names = names
        self._num_top = num_top

    def body(self, tokens: Sequence[Judged]) -> dict[str, list[object]]:
        """The four lists."""
        draws = [token.draw for token in tokens]
        return {
            "tokens": [self._names(token.token_id) for token in tokens],
            "token_logprobs": [None if draw is None else _known(draw.logprob) for draw in draws],
            "top_logprobs": [None if draw is None else self._top(draw) for draw in draws],
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, draw: Draw) -> dict[str, float]:
        """The best tokens and always the drawn one; of two with the same name, the better."""
        best: dict[str, float] = {}
        for token_id, logprob in (*draw.top[: self._num_top], (draw.token_id, draw.logprob)):
            best.setdefault(self._names(token_id), _known(logprob))
        return best
