"""Chat templates in the manner of real ones, as small as they can be and still show their formats."""

from __future__ import annotations

from surefoot.models.chat_template import ChatTemplate

HERMES = """\
{%- if tools %}# Tools: call with <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
{% endif %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- if m.content %}{{ m.content }}{% endif %}
{%- for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""

THINKING = HERMES + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
ALWAYS_THINKING = HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}"

MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}[TOOL_CALLS][
{%- for c in m.tool_calls %}
{%- if c.id | length != 9 %}{{ raise_exception("ids have nine characters") }}{% endif %}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}
{%- endfor %}]
{%- elif m.role == "tool" %}[TOOL_RESULTS]{{ m.content }} {{ m.tool_call_id }}
{%- else %}[INST]{{ m.content }}[/INST]{% endif %}
{%- endfor %}"""

ALTERNATING = """\
{%- for m in messages %}
{%- if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
<{{ m.role }}>{{ m.content }}
{%- endfor %}"""


def template(source: str) -> ChatTemplate:
    """A template of a model without special tokens."""
    return ChatTemplate({"default": source}, {})
