"""Chat templates: the dialect, what is done to messages for them, and what they cannot do to the server."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from surefoot.kernels.errors import RequestError
from surefoot.models import template_sandbox
from surefoot.models.chat_template import ChatTemplate, load_chat_template
from surefoot.models.gguf import Metadata
from surefoot.models.tokenizer import load_tokenizer

SIMPLE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é<b>"}'}}
ASKED = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages or [{"role": "user", "content": "hi"}], **options)


def refusal(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(source, messages, **options)
    assert caught.value.status == 400
    return caught.value


# The dialect


def test_messages_and_generation_prompt() -> None:
    assert render(SIMPLE) == "[user]hi[go]"
    assert render(SIMPLE, add_generation_prompt=False) == "[user]hi"


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "hi\n"


def test_special_tokens_and_further_variables() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ 'think' if enable_thinking else 'no' }}{{ style }}"
    assert render(source, variables={"enable_thinking": True, "style": {"a": 1}}) == "<s></s>think{'a': 1}"
    assert render(source) == "<s></s>no"


def test_helpers() -> None:
    assert render("{{ {'b': 'é<', 'a': [1, none, true]} | tojson }}") == '{"b": "é<", "a": [1, null, true]}'
    assert render("{{ {'b': 1} | tojson(indent=2) }}") == '{\n  "b": 1\n}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":2,"b":1}'
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{% set n = namespace(x=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}"
                  "{% set n.x = n.x + i %}{% endfor %}{{ n.x }}") == "3"  # fmt: skip
    assert render("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{{ ',' if not loop.last }}"
                  "{% endfor %}") == "0,2,3"  # fmt: skip
    assert render("{{ messages[0].content.upper().split('I')[0] ~ messages[0]['content'][::-1] ~ 1 }}") == "Hih1"
    assert render("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m('a') | trim }}") == "<1><a>"
    assert render("{% generation %}kept{% endgeneration %}") == "kept"
    assert render("{{ messages | map(attribute='role') | tojson }}") == '["user"]'
    assert render("{{ '<'|safe + '<b>' }}") == "<<b>"
    assert render("{{ documents | length if documents else 'none' }}") == "none"
    assert render("{{ documents[0].text }}", documents=[{"text": "d"}]) == "d"


def test_the_template_sees_tools() -> None:
    source = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% else %}none{% endif %}"
    assert render(source, tools=[{"type": "function"}]) == '{"type": "function"}'
    assert render(source) == render(source, tools=[]) == "none"


def test_the_source_that_a_conversation_is_rendered_with() -> None:
    template = ChatTemplate({"default": SIMPLE, "tool_use": "{{ tools }}"}, {})
    assert (template.source(), template.source(with_tools=True)) == (SIMPLE, "{{ tools }}")
    assert ChatTemplate({"default": SIMPLE}, {}).source(with_tools=True) == SIMPLE
    assert ChatTemplate({"rag": SIMPLE}, {}).source() == ""


def test_variables_tell_what_a_template_reads() -> None:
    template = ChatTemplate({"default": SIMPLE, "tool_use": "{{ tools }}{{ enable_thinking }}"}, {})
    assert template.variables == {"messages", "add_generation_prompt", "tools", "enable_thinking"}


# Messages in the form that a template takes


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
TAKES_PARTS = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }})"
    "{% endif %}{% endfor %}{% endfor %}"
)
TAKES_BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


def test_parts_become_text_for_a_template_that_takes_only_text() -> None:
    assert render(SIMPLE, PARTS) == "[user]one\ntwo[go]"
    assert render("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}", PARTS) == "user: one\ntwo"


def test_parts_stay_for_a_template_that_takes_them() -> None:
    assert render(TAKES_PARTS, PARTS) == "(one)(two)"
    assert render(TAKES_BOTH, PARTS) == "onetwo"


def test_parts_that_a_template_writes_in_another_way_become_text() -> None:
    dumps = "{% for m in messages %}{{ m.content if m.content is string else m.content | tojson }}{% endfor %}"
    assert render(dumps, PARTS) == "one\ntwo"


def test_text_becomes_a_part_for_a_template_that_takes_only_parts() -> None:
    assert render(TAKES_PARTS) == "(hi)"
    assert render(TAKES_BOTH) == "hi"


def test_other_parts_are_refused() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert "'image_url'" in refusal(SIMPLE, image).message


WRITES_OBJECTS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
WRITES_FIELDS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
WRITES_TEXT = (
    "{% for m in messages %}{% for c in m.tool_calls %}{{ '' + c.function.arguments }}{% endfor %}{% endfor %}"
)
WRITES_EITHER = (
    "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}"
    "{{ a if a is string else a | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("source", [WRITES_OBJECTS, WRITES_TEXT, WRITES_EITHER])
def test_arguments_are_written_once(source: str) -> None:
    assert render(source, ASKED) == '{"a": "é<b>"}'
    as_object = {**CALL, "function": {"name": "f", "arguments": {"a": "é<b>"}}}
    assert render(source, [ASKED[0], {**ASKED[1], "tool_calls": [as_object]}]) == '{"a": "é<b>"}'


def test_arguments_by_field() -> None:
    assert render(WRITES_FIELDS, ASKED) == "<a>é<b>"


def test_arguments_that_are_no_object_are_left_as_they_are() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": '{"a": '}}
    assert render(WRITES_OBJECTS, [ASKED[0], {**ASKED[1], "tool_calls": [broken]}]) == json.dumps('{"a": ')


def test_null_content_only_where_the_template_knows_it() -> None:
    needs_null = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    needs_text = (
        "{% for m in messages %}{{ '' + m.content }}{% if m.tool_calls %}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}"
    )
    assert render(needs_null, ASKED) == render(needs_text, ASKED) == 'x{"a": "é<b>"}'
    assert render(SIMPLE, [{"role": "assistant", "content": None}]) == "[assistant][go]"


def test_a_template_that_reads_calls_only_with_null_content_and_arguments_as_text() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
        "{{ '```' + m.tool_calls[0].function.arguments + '```' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(source, ASKED) == 'x```{"a": "é<b>"}```'


def test_a_template_that_works_only_with_tools() -> None:
    source = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + WRITES_OBJECTS
    assert render(source, ASKED, tools=[{"type": "function", "function": {"name": "g"}}]) == 'g{"a": "é<b>"}'


def test_what_a_template_cannot_say_is_refused() -> None:
    assert "no form for tool calls" in refusal(SIMPLE, ASKED).message
    assert refusal(SIMPLE, tools=[{"type": "function"}]).param == "tools"


def test_a_template_may_keep_lists_of_its_own_and_still_cannot_change_messages() -> None:
    source = (
        "{% set n = namespace(ids=[]) %}{% for m in messages %}{% set _ = n.ids.append(m.content) %}"
        "{% set _ = m.update({'content': 'y'}) %}{% endfor %}{{ n.ids.pop(0) }}{{ messages[0].content }}"
    )
    messages = [{"role": "user", "content": "x"}]
    assert render(source, messages) == "xy"
    assert messages == [{"role": "user", "content": "x"}]


def test_developers_speak_as_system_where_they_are_unknown() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render(SIMPLE, messages) == "[system]x[go]"
    assert render("{# developer #}" + SIMPLE, messages) == "[developer]x[go]"


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def test_a_template_without_a_system_role_gets_its_text_with_the_user() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]}
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
    assert render(NO_SYSTEM, [system, user, answer, user]) == "[user]be\nbrief\nhi[assistant]yo[user]hi"
    assert render(NO_SYSTEM, [{"role": "developer", "content": "x"}]) == "[user]x"
    assert "alternate" in refusal(NO_SYSTEM, [user, user]).message


def test_messages_are_not_changed() -> None:
    messages = json.loads(json.dumps([*PARTS, *ASKED]))
    render(WRITES_OBJECTS, messages)
    assert messages == [*PARTS, *ASKED]


# Faults


def test_the_templates_own_refusal() -> None:
    assert "roles must alternate" in refusal("{{ raise_exception('roles must alternate') }}").message


@pytest.mark.parametrize(
    "source",
    ["{{ x.y.z }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ messages[7].content }}", "{{ {}['a'].b }}", "{{ '%d' % 'x' }}",
     "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ nothing() }}", "{{ [1] | tojson(1, 2, 3, 4, 5, 6) }}",
     "{% include 'other' %}", "{{ namespace | tojson }}"],
)  # fmt: skip
def test_faults_are_the_requests(source: str) -> None:
    assert refusal(source).message.startswith("the chat template refused the messages: ")


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.sort() }}", "{{ messages | attr('append') }}",
     "{{ raise_exception.__globals__ }}", "{{ cycler.__init__.__globals__ }}", "{{ '{0.__class__}'.format(1) }}",
     "{{ range(10000000) | list }}", "{{ self.__init__ }}"],
)  # fmt: skip
def test_there_is_no_way_out(source: str) -> None:
    try:
        text = render(source)
    except RequestError:
        return
    assert text == "", f"{source} gave {text[:80]!r}"


@pytest.mark.parametrize(
    "source",
    ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
     "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
     "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"],
)  # fmt: skip
def test_endless_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.2)
    assert "ran for more than 0.2 seconds" in refusal(source).message


@pytest.mark.parametrize(
    "source",
    ["{{ 'a' * 10**9 }}", "{{ 10**9 * 'a' }}", "{{ [1] * 10**9 }}", "{{ 9**(9**9) }}",
     "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
     "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
     "{% for i in range(50) %}{{ 'a' * 1000000 }}{% endfor %}"],
)  # fmt: skip
def test_huge_texts_are_not_made(source: str) -> None:
    assert "too large" in refusal(source).message


def test_variables_cannot_replace_the_request() -> None:
    assert refusal(SIMPLE, variables={"messages": []}).param == "chat_template_kwargs"


def test_threads_render_apart() -> None:
    template = ChatTemplate({"default": SIMPLE}, {})
    texts: dict[int, set[str]] = {}

    def work(number: int) -> None:
        texts[number] = {template.render([{"role": "user", "content": str(number)}]) for _ in range(50)}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: {f"[user]{number}[go]"} for number in range(4)}


# Files


def loaded(**templates: str) -> ChatTemplate | None:
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 1], np.int32),
        "tokenizer.ggml.scores": np.zeros(4, np.float32),
        **{f"tokenizer.{name}": source for name, source in templates.items()},
    }
    metadata = Metadata("test.gguf", values)
    return load_chat_template(metadata, load_tokenizer(metadata))


MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_a_file_without_a_template_has_none() -> None:
    assert loaded() is None


def test_the_files_special_tokens() -> None:
    template = loaded(chat_template="{{ bos_token }}{{ eos_token }}{{ unk_token }}")
    assert template is not None
    assert template.render(MESSAGES) == "<s></s><unk>"


def test_the_tool_template_is_taken_for_tools() -> None:
    template = loaded(
        chat_template="plain", **{"chat_template.tool_use": "tools{{ '' if tools }}", "chat_template.rag": "rag"}
    )
    assert template is not None
    assert template.render(MESSAGES) == "plain"
    assert template.render(MESSAGES, tools=TOOLS) == "tools"


def test_only_named_templates() -> None:
    template = loaded(**{"chat_template.rag": "rag"})
    assert template is not None
    with pytest.raises(RequestError, match="only: rag"):
        template.render(MESSAGES)


def test_a_broken_template_fails_chat_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    template = loaded(chat_template="a\n{% if %}")
    assert template is not None
    assert "cannot be used" in caplog.text
    with pytest.raises(RequestError, match="cannot be compiled: line 2"):
        template.render(MESSAGES)
