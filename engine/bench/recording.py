"""Recorded answers: what a model said to six kinds of turns, what every weight-free drafter would have guessed at each
position of it, and what steps cost where it ran. The text of an answer does not depend on speculation, so a recording
replays exactly under any policy."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from ...kernels.errors import ConfigError
from ..config import EngineConfig
from ..opening import OpenedModel, open_engine
from ..request import FinishReason, GenerationParams, Output, Submission
from ..speculation.contract import DraftContext, Speculator
from ..speculation.policy import SpeculationPolicy
from ..speculation.registry import Declined, Registry, Resources
from ..speculation.replay import SimulatedSequence, SimulatedTarget, Trace
from .texts import TURNS

TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of one drafter, per output position but the first: tokens it would have drafted there, and how many of them the
    answer would have accepted."""

    drafted: list[int]
    accepted: list[int]


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One request. `guesses` by name of the drafter."""

    kind: str
    temperature: float
    prompt: list[int]
    output: list[int]
    guesses: Mapping[str, Guesses] = field(default_factory=dict[str, Guesses])

    @property
    def trace(self) -> Trace:
        """What a replay needs."""
        return Trace(self.kind, self.prompt, self.output)


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of one model. `costs`: seconds of a step by rows; empty where they were not measured."""

    model: str
    costs: Mapping[int, float]
    answers: Sequence[RecordedAnswer]

    def save(self, path: Path) -> None:
        """One answer a line."""
        head = json.dumps({"model": self.model, "costs": self.costs})[:-1]
        lines = ",\n".join(json.dumps(asdict(answer), separators=(",", ":")) for answer in self.answers)
        path.write_text(f'{head}, "answers": [\n{lines}\n]}}\n')


def load_recording(path: Path) -> Recording:
    """Reads what `save` wrote, or a bare list of answers. Raises ConfigError for anything else."""
    try:
        stored: Any = json.loads(path.read_text())
        bare = isinstance(stored, list)
        costs: dict[int, float] = {} if bare else {int(n): float(s) for n, s in stored["costs"].items()}
        name = path.stem if bare else str(stored["model"])
        answers = [_answer(item) for item in cast("list[Any]", stored if bare else stored["answers"])]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a recording of answers ({type(error).__name__}: {error})") from error
    if any(len(answer.output) < 2 for answer in answers) or not answers:
        raise ConfigError(f"{path}: answers of at least two tokens are needed")
    return Recording(name, costs, answers)


def _answer(item: Mapping[str, Any]) -> RecordedAnswer:
    guesses = {name: Guesses(**value) for name, value in item.get("guesses", {}).items()}
    prompt, output = ([int(token) for token in item[key]] for key in ("prompt", "output"))
    return RecordedAnswer(str(item["kind"]), float(item["temperature"]), prompt, output, guesses)


# --- making one ------------------------------------------------------------------------------------------------------


def record(
    path: Path, max_tokens: int, *, backend: str | None = None, threads: int | None = None, context: int = 2048
) -> Recording:
    """Lets a model answer all turns through the engine, without speculation. Raises StartError."""
    config = EngineConfig(speculation=SpeculationPolicy(enabled=False), context_length=context, max_running=1)
    opened = open_engine(path, config, backend=backend, threads=threads)
    opened.engine.start()
    try:
        answers = [
            _ask(opened, kind, prompt, temperature, max_tokens)
            for kind, prompts in TURNS.items()
            for prompt in prompts
            for temperature in TEMPERATURES
        ]
    finally:
        opened.engine.stop()
    costs = cast("Mapping[str, Mapping[int, float]]", opened.engine.state()["step_cost_seconds"])
    kept = [answer for answer in answers if len(answer.output) > 1]
    return Recording(path.stem, costs["decode"], kept)


def _ask(opened: OpenedModel, kind: str, turn: str, temperature: float, max_tokens: int) -> RecordedAnswer:
    """One request, start to end."""
    model, outputs, ended = opened.model, list[Output](), threading.Event()
    if model.chat_template is None:
        prompt = model.tokenizer.encode(turn, add_special=True, parse_special=False)
    else:
        messages = [{"role": "user", "content": turn}]
        rendered = model.chat_template.render(messages, add_generation_prompt=True, variables={})
        prompt = model.tokenizer.encode_prompt(rendered)

    def deliver(output: Output) -> None:
        outputs.append(output)
        if output.finish is not None:
            ended.set()

    params = GenerationParams(max_tokens=max_tokens, seed=1, temperature=temperature)
    opened.engine.submit(Submission(f"{kind}-{temperature}", prompt, params, b"", deliver))
    ended.wait()
    finish = outputs[-1].finish
    if finish is None or finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ConfigError(f"a turn of kind {kind} could not be recorded: {finish.error if finish else 'no end'}")
    output = [token for part in outputs for token in part.token_ids]
    return RecordedAnswer(kind, temperature, prompt, output, all_guesses(prompt, output, model.program.vocab_size))


def all_guesses(prompt: Sequence[int], output: Sequence[int], vocab_size: int) -> dict[str, Guesses]:
    """What each drafter that needs no weights would have guessed."""
    registry, target = Registry(), SimulatedTarget(vocab_size)
    found: dict[str, Guesses] = {}
    for name, entry in registry.entries.items():
        speculator = registry.create(name, target, Resources()) if entry.weight_free else None
        if speculator is not None and not isinstance(speculator, Declined):
            found[name] = guesses(speculator, Trace("", prompt, output))
    return found


def guesses(speculator: Speculator, trace: Trace) -> Guesses:
    """Asks a drafter at every output position, told nothing but the tokens before it."""
    if len(trace.output) < 2:
        return Guesses([], [])
    request, found = SimulatedSequence("recording", trace), Guesses([], [])
    capabilities, state = speculator.capabilities, speculator.open(request)
    for emitted in range(1, len(trace.output)):
        while speculator.lag(state):
            speculator.catch_up(state, 1.0)
        position, room = len(request.tokens) - 1, len(trace.output) - emitted - 1
        limit = min(capabilities.max_draft_tokens, room)
        confidence = capabilities.default_min_confidence
        context = DraftContext(state, request.tokens[-1], position, limit, confidence, lambda position, grade: True)
        draft = speculator.propose((context,))[0].token_ids if limit else []
        hits = 0
        while hits < len(draft) and draft[hits] == trace.output[emitted + hits]:
            hits += 1
        found.drafted.append(len(draft))
        found.accepted.append(hits)
        request.tokens.append(trace.output[emitted])
    speculator.close(state)
    return found
