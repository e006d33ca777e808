"""Tools and reasoning over HTTP, with scripted answers: streams, whole answers, and what reaches the template."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest
from tool_templates import ALTERNATING, ALWAYS_THINKING, HERMES, MISTRAL, THINKING, template
from tool_texts import PARIS, hermes

SUM = {
    "type": "function",
    "function": {
        "name": "sum",
        "description": "Adds",
        "parameters": {
            "type": "object",
            "properties": {"n1": {"type": "number"}, "n2": {"type": "number"}},
            "required": ["n1", "n2"],
        },
    },
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SUM_CALL = ("sum", {"n1": 2, "n2": 2})
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, **fields}


@pytest.fixture
def answering(start: Any, script: Any) -> Any:
    """Starts a server whose model answers with a text."""

    def begin(text: str, source: str = HERMES, **options: Any) -> Any:
        return start(script(text=lambda _: text.encode()), template=template(source), max_context=100_000, **options)

    return begin


def added_up(chunks: list[Any]) -> dict[str, Any]:
    """The message of a stream, as a client adds it up."""
    message: dict[str, Any] = {"content": None, "reasoning": None, "calls": [], "finish": None}
    for chunk in chunks:
        choice = chunk.choices[0]
        delta = choice.delta
        if delta.content is not None:
            message["content"] = (message["content"] or "") + delta.content
        thought = (delta.model_extra or {}).get("reasoning_content")
        if thought is not None:
            message["reasoning"] = (message["reasoning"] or "") + thought
        for part in delta.tool_calls or ():
            if part.index == len(message["calls"]):
                assert part.type == "function"
                message["calls"].append([part.id, part.function.name, ""])
            else:
                assert part.id is None
                assert part.function.name is None
            message["calls"][part.index][2] += part.function.arguments
        message["finish"] = choice.finish_reason or message["finish"]
    return message


def test_sum(answering: Any) -> None:
    live = answering(hermes(SUM_CALL))
    with live.client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM]))
        chunks = list(client.chat.completions.create(**ask(tools=[SUM], stream=True)))
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.role == "assistant"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", *SUM_CALL)
    assert call.id.startswith("call_")
    message = added_up(chunks)
    assert (message["content"], message["finish"]) == (None, "tool_calls")
    assert message["calls"][0][1:] == ["sum", call.function.arguments]
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("max_step", [1, 7, 10_000])
def test_parallel_calls_with_text(answering: Any, max_step: int) -> None:
    live = answering("I look.\n" + hermes(SUM_CALL, PARIS, SUM_CALL))
    live.engine.script.max_step = max_step
    with live.client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM, WEATHER])).choices[0]
        message = added_up(list(client.chat.completions.create(**ask(tools=[SUM, WEATHER], stream=True))))
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls]
    assert calls == [(name, json.loads(text)) for _, name, text in message["calls"]] == [SUM_CALL, PARIS, SUM_CALL]
    assert whole.message.content == message["content"] == "I look."
    assert whole.finish_reason == message["finish"] == "tool_calls"
    assert len({call.id for call in whole.message.tool_calls}) == 3


def test_one_call_if_parallel_ones_are_off(answering: Any) -> None:
    with answering(hermes(SUM_CALL, PARIS)).client() as client:
        answer = client.chat.completions.create(**ask(tools=[SUM, WEATHER], parallel_tool_calls=False))
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["sum"]


@pytest.mark.parametrize("choice", [None, "auto"])
def test_plain_text_with_tools(answering: Any, choice: Any) -> None:
    with answering("Four <b>.").client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM], tool_choice=choice)).choices[0]
        message = added_up(list(client.chat.completions.create(**ask(tools=[SUM], stream=True))))
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == ("Four <b>.", None, "stop")
    assert (message["content"], message["calls"], message["finish"]) == ("Four <b>.", [], "stop")


@pytest.mark.parametrize("fields", [{}, {"tools": [SUM], "tool_choice": "none"}, {"tools": []}])
def test_without_tools_a_call_is_text(answering: Any, fields: Any) -> None:
    live = answering(hermes(SUM_CALL))
    with live.client() as client:
        answer = client.chat.completions.create(**ask(**fields)).choices[0]
    assert (answer.message.content, answer.message.tool_calls) == (hermes(SUM_CALL), None)
    assert answer.finish_reason == "stop"
    assert b"Adds" not in bytes(live.engine.submissions[0].prompt_ids)


def test_broken_calls_come_back_as_text(answering: Any) -> None:
    text = '<tool_call>\n{"name": "sum", "arguments": {"n1": 2, n2}}\n</tool_call>'
    with answering(text).client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM])).choices[0]
        message = added_up(list(client.chat.completions.create(**ask(tools=[SUM], stream=True))))
        cut = client.chat.completions.create(**ask(tools=[SUM], max_tokens=20)).choices[0]
    assert whole.message.content == message["content"] == text
    assert whole.finish_reason == message["finish"] == "stop"
    assert (cut.message.content, cut.finish_reason) == (text[:20], "length")


def test_choices_have_calls_of_their_own(answering: Any) -> None:
    with answering(hermes(SUM_CALL)).client() as client:
        answer = client.chat.completions.create(**ask(tools=[SUM], n=2))
    ids = [choice.message.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 2
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls"] * 2


def test_logprobs_and_ids_cover_calls_too(answering: Any) -> None:
    text = hermes(SUM_CALL)
    with answering(text).http() as http:
        body = ask(tools=[SUM], logprobs=True, return_token_ids=True)
        choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert bytes(choice["token_ids"]).decode() == text
    assert len(choice["logprobs"]["content"]) == len(text.encode())


# What the template gets


HISTORY: Any = [
    {"role": "user", "content": "2+2?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"n1": 2, "n2": 2}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
    {"role": "user", "content": "Thanks"},
]


def prompt_of(live: Any, **fields: Any) -> str:
    """The prompt that a request becomes, which /tokenize shows too."""
    body = ask(**fields)
    with live.http() as http:
        response = http.post("/v1/chat/completions", json=body)
        tokens = http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    prompt = bytes(live.engine.submissions[-1].prompt_ids)
    assert bytes(tokens.json()["tokens"]) == prompt
    return prompt.decode()


def test_tools_and_history_reach_a_template_that_knows_them(answering: Any) -> None:
    text = prompt_of(answering("ok"), messages=HISTORY, tools=[SUM])
    assert json.dumps(SUM["function"])[1:-1] in text
    assert '<think>Hm.</think><tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>' in text
    assert "[tool]4" in text


def test_history_without_tools(answering: Any) -> None:
    text = prompt_of(answering("ok"), messages=HISTORY)
    assert "# Tools" not in text
    assert '{"name": "sum", "arguments": {"n1": 2, "n2": 2}}' in text


@pytest.mark.parametrize("source", [True, ALTERNATING])
def test_templates_without_tools_get_them_described(start: Any, script: Any, source: Any) -> None:
    made = source if source is True else template(source)
    live = start(script(text=lambda _: hermes(SUM_CALL).encode()), template=made)
    text = prompt_of(live, messages=HISTORY, tools=[SUM])
    assert '"name": "sum", "description": "Adds"' in text
    assert '<tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>' in text
    assert "<tool_response>\n4\n</tool_response>\n\nThanks" in text
    with live.client() as client:
        answer = client.chat.completions.create(**ask(tools=[SUM])).choices[0]
    assert answer.finish_reason == "tool_calls"


def test_mistral_ids(answering: Any) -> None:
    live = answering('[TOOL_CALLS][{"name": "sum", "arguments": {"n1": 2, "n2": 2}}]', MISTRAL)
    with live.client() as client:
        call = client.chat.completions.create(**ask(tools=[SUM])).choices[0].message.tool_calls[0]
    assert len(call.id) == 9
    assert call.id.isalnum()
    text = prompt_of(live, messages=HISTORY, tools=[SUM])
    hashed = text.split('"id": "')[1][:9]
    assert f"[TOOL_RESULTS]4 {hashed}" in text
    own = json.loads(json.dumps(HISTORY).replace("c1", call.id))
    assert f'"id": "{call.id}"' in prompt_of(live, messages=own, tools=[SUM])


def test_control_tokens_that_are_markers_stay_visible() -> None:
    from surefoot.server.chat_format import ChatFormat
    from surefoot.server.schema.tools import ToolFields

    class Tokenizer:
        vocab_size = 300
        special_ids = frozenset({256, 257})

        def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
            assert not add_special
            assert parse_special
            return {"[TOOL_CALLS]": [256], "[ARGS]": [257]}.get(text) or list(text.encode())

    made = ChatFormat(template(MISTRAL), Tokenizer())  # type: ignore[arg-type]
    plan = ToolFields.model_validate({"tools": [SUM]}).call_plan()
    assert made.visible_ids(plan) == {256, 257}
    assert made.visible_ids(None) == frozenset()


# Reasoning


@pytest.mark.parametrize("max_step", [1, 10_000])
def test_reasoning_content(answering: Any, max_step: int) -> None:
    live = answering("<think>\nTwo and two.\n</think>\n\nFour.", THINKING)
    live.engine.script.max_step = max_step
    with live.client() as client:
        whole = client.chat.completions.create(**ask()).choices[0].message
        message = added_up(list(client.chat.completions.create(**ask(stream=True))))
        hidden = client.chat.completions.create(**ask(extra_body={"include_reasoning": False})).choices[0].message
    assert (whole.content, whole.model_extra["reasoning_content"]) == ("Four.", "Two and two.")
    assert (message["content"], message["reasoning"]) == ("Four.", "Two and two.")
    assert (hidden.content, "reasoning_content" in hidden.model_extra) == ("Four.", False)


def test_reasoning_then_a_call(answering: Any) -> None:
    text = 'I need <tool_call>, not "</think>".\n</think>\n\n' + hermes(SUM_CALL)
    with answering(text, ALWAYS_THINKING).client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM])).choices[0]
        message = added_up(list(client.chat.completions.create(**ask(tools=[SUM], stream=True))))
    assert (
        whole.message.model_extra["reasoning_content"] == message["reasoning"] == 'I need <tool_call>, not "</think>".'
    )
    assert whole.message.content is message["content"] is None
    assert whole.message.tool_calls[0].function.name == message["calls"][0][1] == "sum"


def test_switches_reach_the_template(answering: Any) -> None:
    live = answering("Four.", THINKING)
    assert prompt_of(live, reasoning_effort="none").endswith("<think>\n\n</think>\n\n")
    assert prompt_of(live, reasoning_effort="high").endswith("[assistant]")
    assert prompt_of(live, chat_template_kwargs={"enable_thinking": False}).endswith("</think>\n\n")
    both = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}
    assert prompt_of(live, **both).endswith("</think>\n\n")
    with live.client() as client:
        answer = client.chat.completions.create(**ask(reasoning_effort="none")).choices[0].message
    assert (answer.content, answer.model_extra.get("reasoning_content")) == ("Four.", None)


def test_an_effort_that_changes_nothing_is_refused(answering: Any) -> None:
    with answering("x", ALWAYS_THINKING).http() as http:
        for effort in ("none", "high"):
            error = http.post("/v1/chat/completions", json=ask(reasoning_effort=effort)).json()["error"]
            assert (error["param"], error["code"]) == ("reasoning_effort", "unsupported_parameter")
    with answering("x", ALTERNATING).http() as http:
        assert http.post("/v1/chat/completions", json=ask(reasoning_effort="none")).status_code == 200
        assert http.post("/v1/chat/completions", json=ask(reasoning_effort="low")).status_code == 400


def test_a_continued_message_keeps_its_place(answering: Any) -> None:
    live = answering(" and two.</think>Four.", THINKING)
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>Two"}]
    with live.client() as client:
        inside = client.chat.completions.create(**ask(messages=messages, extra_body={"continue_final_message": True}))
    message = inside.choices[0].message
    assert (message.model_extra["reasoning_content"], message.content) == ("and two.", "Four.")


# Promises


NAMED = {"type": "function", "function": {"name": "sum"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_required_calls_are_enforced_by_a_grammar(answering: Any, choice: Any) -> None:
    live = answering(hermes(SUM_CALL))
    with live.client() as client:
        whole = client.chat.completions.create(**ask(tools=[SUM, WEATHER], tool_choice=choice)).choices[0]
        message = added_up(list(client.chat.completions.create(**ask(tools=[SUM], tool_choice=choice, stream=True))))
    assert whole.finish_reason == message["finish"] == "tool_calls"
    assert whole.message.tool_calls[0].function.name == message["calls"][0][1] == "sum"
    assert whole.message.content is message["content"] is None
    grammar = live.engine.submissions[0].params.grammar
    assert grammar.constraint.param == "tool_choice"
    allowed = grammar.start().masks_for()[0]
    assert [byte for byte in range(256) if allowed[byte // 32] >> (byte % 32) & 1] == [ord("<")]
    assert ("get_weather" in grammar.constraint.text) == (choice == "required")


def test_strict_tools_are_held_to_their_schemas(answering: Any) -> None:
    strict = {**SUM, "function": {**SUM["function"], "strict": True}}
    live = answering("Four.")
    with live.client() as client:
        for tools, choice in (([strict], "auto"), ([SUM], "auto"), ([strict], "none")):
            answer = client.chat.completions.create(**ask(tools=tools, tool_choice=choice)).choices[0]
            assert answer.message.content == "Four."
    grammars = [submission.params.grammar for submission in live.engine.submissions]
    assert [grammar is not None for grammar in grammars] == [True, False, False]
    assert grammars[0].constraint.param == "tools"


def test_an_override_has_to_fit_the_template(start: Any) -> None:
    from surefoot.kernels.errors import ConfigError

    with pytest.raises(ConfigError, match="known: hermes"):
        start(tool_parser="nope", template=template(HERMES))
    with pytest.raises(ConfigError, match="knows no tools"):
        start(tool_parser="mistral")
    live = start(tool_parser="qwen_coder", template=template(HERMES))
    assert live.service.prompter.chat().dialect_name == "qwen_coder"


# A budget for reasoning


class Marked:
    """A byte tokenizer with a token for each mark of reasoning."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = self._inner.encode(text, add_special=add_special, parse_special=parse_special)
        for marker, token in (("<think>", 258), ("</think>", 259)):
            mark = list(marker.encode())
            for at in range(len(ids) - len(mark), -1, -1):
                if ids[at : at + len(mark)] == mark:
                    ids[at : at + len(mark)] = [token]
        return ids


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"])
def test_a_budget_reaches_the_engine(answering: Any, name: str) -> None:
    live = answering("Four.", ALWAYS_THINKING)
    chat = live.service.prompter.chat()
    chat._tokenizer = Marked(chat._tokenizer)
    with live.http() as http:
        for value in (5, 0, None, -1 if name != "thinking_token_budget" else None):
            response = http.post("/v1/chat/completions", json=ask(**{name: value}))
            assert response.status_code == 200, response.text
    limited, none, *free = [submission.params.grammar for submission in live.engine.submissions]
    assert (limited.tokens, limited.opener, limited.closer, limited.ending) == (5, None, 259, (10, 259))
    assert none.start().forced_drafts(3) == [10, 259]
    assert free == [None, None]


def test_a_budget_that_means_nothing_is_refused(answering: Any, plain: Any) -> None:
    for live in (plain, answering("x", THINKING)):  # no reasoning; marks of many tokens
        with live.http() as http:
            response = http.post("/v1/chat/completions", json=ask(thinking_token_budget=5))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "thinking_token_budget"


def test_a_grammar_that_does_not_compile_in_time_is_a_400(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    live = answering("never asked")
    work: Future[Any] = Future()
    monkeypatch.setattr(live.engine, "compile", lambda constraint: work)
    monkeypatch.setattr("surefoot.server.structured.COMPILE_SECONDS", 0.05)
    with live.http() as http:
        answer = http.post("/v1/chat/completions", json=ask(tools=[SUM], tool_choice="required"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
    assert not work.cancelled(), "the compiler's work is for the next request"
    assert not live.engine.submissions
