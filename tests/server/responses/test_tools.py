"""Function tools, reasoning and structured output of responses, with scripted answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from tool_templates import ALWAYS_THINKING, HERMES, THINKING, template
from tool_texts import PARIS, hermes

SUM: Any = {
    "type": "function",
    "name": "sum",
    "description": "Adds",
    "parameters": {
        "type": "object",
        "properties": {"n1": {"type": "number"}, "n2": {"type": "number"}},
        "required": ["n1", "n2"],
    },
    "strict": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SUM_CALL = ("sum", {"n1": 2, "n2": 2})


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **fields}


@pytest.fixture
def answering(start: Any, script: Any) -> Any:
    """Starts a server whose model answers with a text, or with one after another."""

    def begin(*texts: str, source: str = HERMES, max_step: int = 5, **options: Any) -> Any:
        left = list(texts)

        def next_text(_: Any) -> bytes:
            return (left.pop(0) if len(left) > 1 else left[0]).encode()

        return start(
            script(text=next_text, max_step=max_step), template=template(source), max_context=100_000, **options
        )

    return begin


def prompt_of(live: Any) -> str:
    return bytes(live.engine.submissions[-1].prompt_ids).decode()


def names_of(events: Any) -> list[str]:
    """Event names, runs of one as one."""
    names = [event.type.removeprefix("response.") for event in events]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def test_a_call(answering: Any) -> None:
    live = answering(hermes(SUM_CALL))
    with live.client() as client:
        answer = client.responses.create(**ask(tools=[SUM]))
        events = list(client.responses.create(**ask(tools=[SUM], stream=True)))
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "sum", "completed")
    assert json.loads(call.arguments) == SUM_CALL[1]
    assert (call.id[:3], call.call_id[:5]) == ("fc_", "call_")
    assert answer.status == "completed"
    assert answer.output_text == ""
    assert [(tool.name, tool.strict) for tool in answer.tools] == [("sum", False)]
    assert names_of(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert deltas == done.arguments == events[-1].response.output[0].arguments == call.arguments
    added = next(event for event in events if event.type == "response.output_item.added")
    assert (added.item.arguments, added.item.status, added.item.name) == ("", "in_progress", "sum")


@pytest.mark.parametrize("max_step", [1, 7, 10_000])
def test_text_and_parallel_calls_are_items_in_order(answering: Any, max_step: int) -> None:
    live = answering("I look.\n" + hermes(SUM_CALL, PARIS), max_step=max_step)
    with live.client() as client:
        whole = client.responses.create(**ask(tools=[SUM, WEATHER]))
        with client.responses.stream(**ask(tools=[SUM, WEATHER])) as stream:
            streamed = stream.get_final_response()
    for answer in (whole, streamed):
        text, *calls = answer.output
        assert text.content[0].text == "I look."
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [SUM_CALL, PARIS]
        assert len({call.call_id for call in calls} | {item.id for item in answer.output}) == 5


def test_text_behind_a_call_is_a_message_of_its_own(answering: Any) -> None:
    live = answering(hermes(SUM_CALL) + "\nDone.")
    with live.client() as client:
        answer = client.responses.create(**ask(tools=[SUM]))
        kinds = [item.type for item in answer.output]
        client.responses.create(
            **ask(
                tools=[SUM],
                previous_response_id=answer.id,
                input=[{"type": "function_call_output", "call_id": answer.output[0].call_id, "output": "4"}],
            )
        )
    assert kinds == ["function_call", "message"]
    assert prompt_of(live).count("[assistant]") == 2  # one turn of the history, and the one to come
    assert "Done." in prompt_of(live)


def test_one_call_if_parallel_ones_are_off(answering: Any) -> None:
    with answering(hermes(SUM_CALL, PARIS)).client() as client:
        answer = client.responses.create(**ask(tools=[SUM, WEATHER], parallel_tool_calls=False))
    assert [item.name for item in answer.output] == ["sum"]
    assert answer.parallel_tool_calls is False


def test_a_call_that_is_cut_is_incomplete(answering: Any) -> None:
    text = hermes(("sum", {"n1": 2, "n2": 2, "why": "x" * 400}))
    with answering(text).client() as client:
        answer = client.responses.create(**ask(tools=[SUM], max_output_tokens=len(text) - 60))
        whole = client.responses.create(**ask(tools=[SUM], max_output_tokens=len(text)))
    assert (answer.status, answer.output[0].type, answer.output[0].status) == (
        "incomplete",
        "function_call",
        "incomplete",
    )
    assert whole.output[0].status == "completed"  # the limit came behind it


def test_a_loop_with_tools_over_previous_ids(answering: Any) -> None:
    """As agents do it: the output is all that the client sends back."""
    live = answering(hermes(SUM_CALL, PARIS), "Four, and sunny.")
    with live.client() as client:
        first = client.responses.create(**ask(tools=[SUM, WEATHER], instructions="Use tools."))
        outputs: Any = [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(first.output, ("4", "sunny"), strict=True)
        ]
        second = client.responses.create(
            **ask(tools=[SUM, WEATHER], instructions="Use tools.", previous_response_id=first.id, input=outputs)
        )
        chained = prompt_of(live)
        items: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *outputs]
        client.responses.create(**ask(tools=[SUM, WEATHER], instructions="Use tools.", input=items))
        kinds = [item.type for item in client.responses.input_items.list(second.id, order="asc")]
    assert second.output_text == "Four, and sunny."
    assert second.previous_response_id == first.id
    assert '<tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>' in chained
    assert "[tool]4[tool]sunny[assistant]" in chained
    assert prompt_of(live) == chained  # whoever sends everything again asks the same
    assert kinds == ["message", "function_call", "function_call", "function_call_output", "function_call_output"]


def test_the_same_conversation_as_chat_completions(answering: Any) -> None:
    live = answering("x")
    call = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"n1": 2, "n2": 2}'}}
    messages: Any = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "And now?"},
    ]
    items: Any = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "I add."},
        {"type": "function_call", "call_id": "c1", "name": "sum", "arguments": '{"n1": 2, "n2": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4"}]},
        {"role": "user", "content": "And now?"},
    ]
    chat_tool = {"type": "function", "function": {key: value for key, value in SUM.items() if key != "type"}}
    with live.client() as client:
        client.chat.completions.create(model="tiny", messages=messages, tools=[chat_tool])
        by_chat = prompt_of(live)
        client.responses.create(**ask(instructions="Add.", input=items, tools=[SUM]))
    assert prompt_of(live) == by_chat


@pytest.mark.parametrize(
    ("choice", "names", "required"),
    [
        ("required", {"sum", "get_weather"}, True),
        ({"type": "function", "name": "sum"}, {"sum"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "sum"}]}, {"sum"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sum"}]}, {"sum"}, False),
    ],
)
def test_choices_are_kept_by_a_grammar(answering: Any, choice: Any, names: set[str], required: bool) -> None:
    live = answering(hermes(SUM_CALL))
    with live.client() as client:
        answer = client.responses.create(**ask(tools=[SUM, WEATHER], tool_choice=choice))
    shown = answer.tool_choice if isinstance(choice, str) else answer.tool_choice.to_dict()
    assert shown == choice
    assert answer.output[0].name == "sum"
    grammar = live.engine.submissions[0].params.grammar
    assert {name for name in ("sum", "get_weather") if name in grammar.constraint.text} == names
    first = {byte for byte in range(256) if grammar.start().masks_for()[0][byte // 32] >> (byte % 32) & 1}
    assert (first == {ord("<")}) == required
    assert '"name": "get_weather"' in prompt_of(live)  # the model sees them all, so that the prefix stays


@pytest.mark.parametrize(
    "choice",
    [
        "maybe",
        {"type": "function", "name": "nope"},
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "sometimes", "tools": [{"type": "function", "name": "sum"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nope"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": ["sum"]},
    ],
)
def test_bad_choices(answering: Any, choice: Any) -> None:
    with answering("x").http() as http:
        response = http.post("/v1/responses", json=ask(tools=[SUM], tool_choice=choice))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


def test_chat_takes_allowed_tools_too(answering: Any) -> None:
    live = answering(hermes(SUM_CALL))
    tools = [
        {"type": "function", "function": {key: value for key, value in made.items() if key != "type"}}
        for made in (SUM, WEATHER)
    ]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "sum"}}]}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": tools,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
    }
    with live.http() as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert "get_weather" not in live.engine.submissions[0].params.grammar.constraint.text


def test_strict_tools_are_held_to_their_schemas(answering: Any) -> None:
    live = answering("Four.")
    with live.client() as client:
        for strict in (True, None):
            answer = client.responses.create(**ask(tools=[{**SUM, "strict": strict}]))
            assert answer.tools[0].strict is bool(strict)
    assert [submission.params.grammar is not None for submission in live.engine.submissions] == [True, False]


# Reasoning


@pytest.mark.parametrize("max_step", [1, 4, 10_000])
def test_reasoning_is_an_item(answering: Any, max_step: int) -> None:
    live = answering("<think>\nTwo and two.\n</think>\n\nFour.", source=THINKING, max_step=max_step)
    with live.client() as client:
        answer = client.responses.create(**ask(reasoning={"effort": "high", "summary": "auto"}))
        events = list(client.responses.create(**ask(stream=True)))
    reasoning, message = answer.output
    assert (reasoning.type, reasoning.summary, reasoning.status) == ("reasoning", [], "completed")
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "Two and two.")]
    assert message.content[0].text == answer.output_text == "Four."
    assert answer.usage.output_tokens_details.reasoning_tokens == len("<think>\nTwo and two.\n</think>")
    assert answer.reasoning.effort == "high"
    assert names_of(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert thought == "Two and two."
    assert events[-1].response.usage == answer.usage


def test_reasoning_that_is_cut_has_all_tokens(answering: Any) -> None:
    with answering("Two and two", source=ALWAYS_THINKING).client() as client:
        answer = client.responses.create(**ask(max_output_tokens=7))
    assert [item.type for item in answer.output] == ["reasoning"]
    assert answer.output[0].status == answer.status == "incomplete"
    assert answer.usage.output_tokens_details.reasoning_tokens == answer.usage.output_tokens == 7


def test_reasoning_goes_back_to_the_template(answering: Any) -> None:
    live = answering("<think>\nTwo and two.\n</think>\n\nFour.", source=THINKING)
    with live.client() as client:
        first = client.responses.create(**ask())
        client.responses.create(**ask(input="And?", previous_response_id=first.id))
        chained = prompt_of(live)
        sent: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output)]
        client.responses.create(**ask(input=[*sent, {"role": "user", "content": "And?"}]))
    assert "[assistant]<think>Two and two.</think>Four.[user]And?" in chained
    assert prompt_of(live) == chained


def test_switches_of_the_template(answering: Any) -> None:
    live = answering("Four.", source=THINKING)
    with live.client() as client:
        client.responses.create(**ask(reasoning={"effort": "none"}))
        assert prompt_of(live).endswith("<think>\n\n</think>\n\n")
        client.responses.create(**ask(extra_body={"chat_template_kwargs": {"enable_thinking": False}}))
        assert prompt_of(live).endswith("<think>\n\n</think>\n\n")


def test_logprobs_are_those_of_the_message(answering: Any) -> None:
    """Neither the reasoning's tokens nor the calls' are among them, whatever came in one step."""
    text = "<think>\nTwo.\n</think>\n\nI look.\n" + hermes(SUM_CALL)
    for max_step in (1, 3, 10_000):
        live = answering(text, source=THINKING, max_step=max_step)
        with live.client() as client:
            fields = ask(tools=[SUM], include=["message.output_text.logprobs"])
            whole = client.responses.create(**fields)
            events = list(client.responses.create(**fields, stream=True))
        _, message, call = whole.output
        tokens = "".join(entry.token for entry in message.content[0].logprobs)
        assert tokens == "\n\nI look."
        assert call.type == "function_call"
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert "".join(entry.token for event in deltas for entry in event.logprobs) == tokens


# Structured output


class Step(BaseModel):
    name: str
    amount: int


def test_parse_with_a_pydantic_model(answering: Any) -> None:
    live = answering('{"name": "flour", "amount": 3}')
    with live.client() as client:
        answer = client.responses.parse(**ask(text_format=Step))
        with client.responses.stream(**ask(text_format=Step)) as stream:
            streamed = stream.get_final_response()
    assert answer.output_parsed == streamed.output_parsed == Step(name="flour", amount=3)
    for submission in live.engine.submissions:
        assert submission.params.grammar.constraint.param == "text.format"
    assert answer.text.format.type == "json_schema"
    assert answer.text.format.schema_["properties"]["amount"] == {"title": "Amount", "type": "integer"}


def test_json_objects(answering: Any) -> None:
    live = answering("{}")
    with live.client() as client:
        answer = client.responses.create(**ask(text={"format": {"type": "json_object"}}))
    allowed = live.engine.submissions[0].params.grammar.start().masks_for()[0]
    assert allowed[ord("{") // 32] >> (ord("{") % 32) & 1
    assert not allowed[ord("a") // 32] >> (ord("a") % 32) & 1
    assert answer.text.format.type == "json_object"


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_kept_is_refused_before_any_token(answering: Any, stream: bool) -> None:
    live = answering("{}")
    made = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "not-a-type"}}
    with live.http() as http:
        response = http.post("/v1/responses", json=ask(text={"format": made}, stream=stream))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("text.format")
    assert not live.engine.submissions
