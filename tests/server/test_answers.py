"""Answers over any split of the same output into steps: the same message, and no empty chunk in between."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.request import Draw, Finish, FinishReason, Output
from surefoot.server.api.chat import ChatAnswer
from surefoot.server.api.completions import CompletionAnswer
from surefoot.server.chunks import Header
from surefoot.server.deltas import PlainText, merge_delta
from surefoot.server.prompts import Prompt
from surefoot.server.schema.chat import ChatRequest
from surefoot.server.schema.completions import CompletionRequest

HEADER = Header("id", "chunk", 0, "m", "fp")
PROMPT = Prompt([65, 66], "AB")


class Bytes:
    vocab_size = 256
    special_ids: frozenset[int] = frozenset()

    def prefixed_token(self, ids: Any) -> None:
        return None

    def token_bytes(self, token_id: int, *, special: bool) -> bytes:
        return bytes([token_id])

    def decode(self, ids: Any, *, skip_special: bool) -> str:
        return bytes(ids).decode(errors="replace")


SERVICE: Any = SimpleNamespace(model=SimpleNamespace(tokenizer=Bytes()))


@st.composite
def steps(draw: Any) -> list[Output]:
    """An answer cut into steps anywhere; text follows its tokens, never earlier than their last byte."""
    text = draw(st.text(st.sampled_from("ab é🌶"), max_size=12))
    data = text.encode()
    borders = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6)) | {0, len(data)})
    outputs, shown = [], 0
    for start, stop in pairwise(borders):
        whole = len(data[:stop].decode(errors="ignore"))
        lag = draw(st.integers(0, 2))
        upto = max(shown, whole - lag)
        ids = list(data[start:stop])
        outputs.append(Output(ids, [Draw(token, -token / 7, ((97, -1.0),)) for token in ids], text[shown:upto]))
        shown = upto
    finish = Finish(FinishReason.STOP, None, None, 2, 0, len(data) + 1)
    outputs.append(Output(text=text[shown:], finish=finish))
    return outputs


def run(answer: Any, outputs: list[Output]) -> tuple[list[Any], Any]:
    chunks = answer.start() + [chunk for output in outputs for chunk in answer.feed(0, output)]
    assert answer.done
    return chunks, answer.fold(chunks + answer.end())


def joined(outputs: list[Output]) -> list[Output]:
    whole = Output(finish=outputs[-1].finish, prompt_draws=outputs[0].prompt_draws)
    for output in outputs:
        whole.token_ids += output.token_ids
        whole.draws += output.draws
        whole.text += output.text
    return [whole]


@given(steps())
def test_chat(outputs: list[Output]) -> None:
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    )
    chunks, whole = run(ChatAnswer(HEADER, body, PROMPT, 1, [PlainText()], SERVICE), outputs)
    _, at_once = run(ChatAnswer(HEADER, body, PROMPT, 1, [PlainText()], SERVICE), joined(outputs))
    assert whole == at_once
    assert bytes(whole["choices"][0]["token_ids"]).decode() == whole["choices"][0]["message"]["content"]
    assert all(chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:-1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


@given(steps(), st.booleans())
def test_completions(outputs: list[Output], echo: bool) -> None:
    body = CompletionRequest.model_validate({"prompt": "AB", "logprobs": 1, "echo": echo, "return_token_ids": True})
    outputs[0].prompt_draws = [None, Draw(66, -0.5)] if echo else None
    wholes: list[Any] = []
    for split in (outputs, joined(outputs)):
        chunks, whole = run(CompletionAnswer(HEADER, body, [PROMPT], 1, SERVICE), split)
        wholes.append(whole)
        assert all(chunk["choices"][0]["text"] for chunk in chunks[:-1])
    assert wholes[0] == wholes[1]
    choice = wholes[0]["choices"][0]
    assert choice["text"] == "AB" * echo + bytes(choice["token_ids"]).decode()
    lists = choice["logprobs"]
    assert {len(entry) for entry in lists.values()} == {len(choice["token_ids"]) + 2 * echo}
    assert lists["text_offset"] == sorted(lists["text_offset"])


def test_call_deltas_fold_into_calls() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    parts: list[dict[str, Any]] = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    merge_delta(message, {"content": "so: "})
    for part in parts:
        merge_delta(message, {"tool_calls": [part]})
    assert message["content"] == "so: "
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert parts[0]["function"]["arguments"] == ""  # the chunks that were streamed stay as they were
