"""A response over any split of the same output into steps: the same items, the same log-probabilities at the same
places, and events that add up to them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tool_templates import HERMES, THINKING, template
from tool_texts import hermes

from surefoot.engine.request import Draw, Finish, FinishReason, Output
from surefoot.models.tokenizer import StreamDecoder
from surefoot.server.chat_format import ChatFormat
from surefoot.server.choices import TokenNames
from surefoot.server.reasoning.formats import Begin
from surefoot.server.responses.answer import ResponseAnswer, ResponseHeader
from surefoot.server.responses.reading import AnswerReader
from surefoot.server.schema.responses import ResponseRequest

HEADER = ResponseHeader("resp_1", 0, "m", "fp", 1, True)
TOOL = {"type": "function", "name": "sum", "parameters": {"type": "object", "properties": {"n1": {"type": "number"}}}}
LOGPROBS = ["message.output_text.logprobs"]


class Bytes:
    """Token i is byte i; 256 is a control token without a text."""

    vocab_size = 257
    special_ids = frozenset({256})

    def token_bytes(self, token_id: int, *, special: bool) -> bytes:
        return b"" if token_id == 256 else bytes([token_id])

    def prefixed_token(self, ids: Any) -> None:
        return None

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())


TOKENIZER: Any = Bytes()


def answer_of(source: str, include: list[str], keep: Any) -> ResponseAnswer:
    chat = ChatFormat(template(source), TOKENIZER)
    asked = ResponseRequest.model_validate({"input": "x", "include": include, "tools": [TOOL]})
    reader = AnswerReader(
        chat.reader(asked.call_plan(), Begin.ANEW),
        StreamDecoder(TOKENIZER, [1, 2]),
        with_draws=asked.num_logprobs() is not None,
    )
    return ResponseAnswer(HEADER, asked, [1, 2], reader, TokenNames(TOKENIZER, False), keep)


def steps_of(text: str, borders: set[int], lag: int, reason: FinishReason) -> list[Output]:
    """The text's bytes cut into steps; its characters come with their last byte or a few later."""
    data = text.encode()
    outputs: list[Output] = []
    shown = 0
    for start, stop in pairwise(sorted({0, len(data)} | {border for border in borders if border < len(data)})):
        upto = max(shown, len(data[:stop].decode(errors="ignore")) - lag)
        ids = list(data[start:stop])
        outputs.append(Output(ids, [Draw(token, -token / 7, ()) for token in ids], text[shown:upto]))
        shown = upto
    finish = Finish(reason, None, None, 2, 0, len(data) + 1)
    return [*outputs, Output([256], [Draw(256, -1.0, ())], text[shown:], finish=finish)]


def run(answer: ResponseAnswer, outputs: list[Output]) -> tuple[list[Any], dict[str, Any]]:
    events: list[Any] = answer.start() + [event for output in outputs for event in answer.feed(0, output)]
    assert answer.done
    return events, answer.fold(events + answer.end())


def added_up(events: list[Any]) -> list[dict[str, Any]]:
    """The items as a client adds them up from the deltas."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append({"type": event["item"]["type"], "text": "", "logprobs": []})
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert event["delta"]
                items[event["output_index"]]["text"] += event["delta"]
                items[event["output_index"]]["logprobs"] += event.get("logprobs", [])
            case _:
                pass
    return items


def essence(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole items without their ids."""
    return [
        {
            "type": item["type"],
            "text": item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"],
            "logprobs": [] if item["type"] == "function_call" else item["content"][0].get("logprobs", []),
        }
        for item in items
    ]


CALL = hermes(("sum", {"n1": 2}))
TEXTS = [
    "Hello é🌶 world",
    f"I look.\n{CALL}\n{CALL} and more <tool_call>no",
    f"<think>\nQuote `</think>` é.\n</think>\n\nSo: {CALL}",
    "<think>open",
    f"<think>x</think>{CALL}🌶",
    "",
]


@pytest.mark.parametrize("source", [HERMES, THINKING])
@pytest.mark.parametrize("include", [[], LOGPROBS])
@given(
    text=st.sampled_from(TEXTS),
    borders=st.sets(st.integers(1, 140), max_size=12),
    lag=st.integers(0, 3),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
@example(text=TEXTS[2], borders=set(range(1, 140)), lag=0, reason=FinishReason.STOP)
def test_any_split(
    source: str, include: list[str], text: str, borders: set[int], lag: int, reason: FinishReason
) -> None:
    kept: list[Any] = []
    events, body = run(answer_of(source, include, kept.append), steps_of(text, borders, lag, reason))
    _, at_once = run(answer_of(source, include, kept.append), steps_of(text, set(), 0, reason))
    assert kept[0] == body
    assert essence(body["output"]) == essence(at_once["output"])
    assert [item["status"] for item in body["output"]] == [item["status"] for item in at_once["output"]]
    assert body["usage"] == at_once["usage"]
    assert added_up(events) == essence(body["output"])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == body["output"]


@given(text=st.text(st.sampled_from("ab é🌶"), max_size=12), borders=st.sets(st.integers(1, 40)), lag=st.integers(0, 3))
def test_every_token_of_a_plain_text_is_judged(text: str, borders: set[int], lag: int) -> None:
    outputs = steps_of(text, borders, lag, FinishReason.STOP)
    _, body = run(answer_of(HERMES, LOGPROBS, lambda _: None), outputs)
    (message,) = body["output"]
    assert message["content"][0]["text"] == text
    drawn = [draw.logprob for output in outputs for draw in output.draws]
    assert [entry["logprob"] for entry in message["content"][0]["logprobs"]] == drawn[:-1]  # the last has no text
