"""What the server needs from the floors below, as protocols: the tests drive the same app with scripted engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from ..engine.grammar.constraint import Constraint
from ..engine.grammar.matcher import Grammar
from ..engine.request import Submission


class Health(Protocol):
    """Whether the engine makes progress; `reason` says what is wrong when it does not."""

    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...


class Engine(Protocol):
    """The running engine. Every method may be called from the event loop and returns at once, except `stop`."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def registry(self) -> CollectorRegistry: ...
    def start(self) -> None: ...
    def submit(self, submission: Submission) -> None:
        """Takes a request, or raises RequestError when it can never run. Its outputs end with exactly one final one."""
        ...

    def announce(self, bell: int | None) -> bool:
        """Outputs that have been delivered are announced, once a step, by eight bytes written to this eventfd; None: no
        longer. False where that cannot be, and `deliver` has to wake whom it concerns."""
        ...

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """A constraint ready for `GenerationParams.grammar`. The future's RequestError says why it cannot be used."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ends a request within one step. Unknown and finished ids are ignored."""
        ...

    def health(self) -> Health: ...
    def state(self) -> Mapping[str, object]: ...
    def speculation(self) -> Future[dict[str, object]]:
        """The policy and what it does, taken between two steps."""
        ...

    def change_speculation(self, body: object) -> Future[dict[str, object]]:
        """Applies a PATCH between two steps. Fails with RequestError 422, and nothing changed, if it is malformed."""
        ...

    def reset_cache(self) -> Future[dict[str, object]]:
        """Forgets all that is cached of prompts. The result: blocks that are free now, that running requests keep for
        themselves, and that are still cached."""
        ...

    def stop(self) -> None:
        """Ends every request and joins the engine thread."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. All methods are thread-safe."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def encode_gap(self, before: str | Sequence[int], after: str) -> list[int] | None:
        """Ids that ask for what stands between a text (or its ids) and another; None: the model cannot be asked."""
        ...

    def encode_prompt(self, rendered: str, *, add_special: bool | None = None) -> list[int]:
        """Ids of a rendered template. What the model wants around a text is added, or not, or (None) as far as the
        template has not written it."""
        ...

    def shielded(self, texts: Sequence[str]) -> list[str]:
        """Somebody else's words, in pieces that a template may write one after the other, so that `encode_prompt` finds
        no control token in them."""
        ...

    def unshielded(self, rendered: str) -> str:
        """What a rendered template says, once the shields are taken off again."""
        ...

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str: ...
    def token_bytes(self, token_id: int, *, special: bool) -> bytes:
        """The bytes that a token adds to a text; a control token has its name if `special`, else none."""
        ...

    def prefixed_token(self, ids: Iterable[int]) -> int | None:
        """Index of the token that carries the space added before the first word, where the model adds one."""
        ...


class ChatTemplate(Protocol):
    """A model's chat template. `render` raises RequestError when the template rejects the messages."""

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads from outside."""
        ...

    def source(self, with_tools: bool = False) -> str:
        """The template's text, which shows the formats that the model was taught."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> str: ...
