"""Names of algorithms. The only place that knows which exist; a line each, imported when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...kernels.errors import ConfigError
from .contract import Speculator, Target
from .draft_resources import DraftChoice

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Declined:
    """An algorithm cannot serve this target. `reason` is a sentence for the operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resources:
    """What factories may build on beside the target. `draft_model` is the operator's drafter, loaded, or why it cannot
    be one."""

    draft_model: DraftChoice | Declined | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


Factory = Callable[[Target, Resources], "Speculator | Declined"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`factory` is a callable, or "module:function" in this package. Weight-free: drafts without a trained drafter."""

    factory: str | Factory
    weight_free: bool = False

    def load(self) -> Factory:
        """The callable. An import error inside the module is not disguised."""
        if not isinstance(self.factory, str):
            return self.factory
        module, _, name = self.factory.partition(":")
        return getattr(import_module(f".{module}", __package__), name)


# In the order in which `auto` tries them.
BUILTIN: Mapping[str, Entry] = {
    "draft-model": Entry("draft_model:create"),
    "ngram": Entry("ngram:create", weight_free=True),
}


@dataclass(frozen=True, slots=True)
class Registry:
    """An immutable table of algorithms; `extended` gives a larger one."""

    entries: Mapping[str, Entry] = field(default_factory=lambda: BUILTIN)

    @property
    def names(self) -> tuple[str, ...]:
        """What a policy's `type` may say."""
        return (AUTO, *self.entries)

    def extended(self, name: str, entry: Entry) -> Registry:
        """This registry and one more algorithm. `auto` tries it last."""
        if name == AUTO or name in self.entries:
            raise ConfigError(f"a speculation type named {name!r} exists already")
        return Registry({**self.entries, name: entry})

    def check(self, name: str) -> None:
        """Raises ConfigError, listing the known names, when `name` is not one of them."""
        if name not in self.names:
            raise ConfigError(f"unknown speculation type {name!r}; known: {', '.join(self.names)}")

    def members(self, name: str) -> tuple[str, ...]:
        """The algorithms that a policy's `type` stands for, best first."""
        self.check(name)
        return tuple(self.entries) if name == AUTO else (name,)

    def create(self, name: str, target: Target, resources: Resources) -> Speculator | Declined:
        """The named algorithm for a target, or why there is none. A target's refusal outranks everything else: then no
        factory runs, so no draft file is opened."""
        entry = self.entries[name]
        if target.verdict.refusal is not None:
            return Declined(target.verdict.refusal)
        if entry.weight_free and target.verdict.unprofitable is not None:
            return Declined(target.verdict.unprofitable)
        return entry.load()(target, resources)
