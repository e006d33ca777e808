"""Answers of every kind on the page, in a real browser: thoughts, calls, very long ones; and readers of every kind."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytestmark = pytest.mark.slow

THOUGHT = "The user greets me.\n\nI should say **hello** back, in one line."
ANSWER = "Hello! Here is a list:\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class ThinkingTemplate:
    """`role:content` lines of a model that reasons between <think> and </think> if it likes."""

    variables = frozenset({"messages", "enable_thinking"})

    def source(self, with_tools: bool = False) -> str:
        return "<think></think>"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: object,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None,
    ) -> str:
        return "".join(f"{m['role']}:{m['content']}\n" for m in messages) + "assistant:" * add_generation_prompt


def until(page: Any, expression: str, argument: object = None) -> None:
    deadline = time.monotonic() + 15
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finished(page: Any) -> None:
    page.wait_for_selector("#send:visible")


def shot(page: Any, name: str) -> None:
    folder = os.environ.get("PAGE_SHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png")


def body(page: Any) -> Any:
    return page.locator(".turn.assistant .body").last


def test_thoughts_are_folded_apart_from_the_answer(visit: Any, start: Any, script: Any) -> None:
    text = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
    live = start(script(lambda _: text.encode(), max_step=4, pause_s=0.03), template=ThinkingTemplate())
    page = visit(live.url)
    ask(page, "hello")
    summary = page.locator(".assistant .thought summary")
    summary.wait_for()
    assert summary.inner_text() == "Thinking…"
    assert body(page).inner_text() == "", "no thought is taken for the answer"
    summary.focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.assistant .thought p').textContent.startsWith('The user')")
    shot(page, "thinking")
    finished(page)
    assert summary.inner_text() == "Reasoning"
    assert page.locator(".assistant .thought p").inner_text() == THOUGHT
    assert "user greets" not in body(page).inner_text()
    assert body(page).locator("li").all_inner_texts() == ["one", "two"]
    assert body(page).locator("th").all_inner_texts() == ["a", "b"]
    shot(page, "thought")
    page.reload()
    assert not page.locator(".assistant .thought p").is_visible()
    page.locator(".assistant .thought summary").click()
    until(page, "document.querySelector('.assistant .thought p').textContent.includes('in one line')")
    ask(page, "more")
    finished(page)
    assert bytes(live.engine.submissions[-1].prompt_ids).decode().count("user greets") == 0, (
        "thoughts are not sent back"
    )


@pytest.mark.parametrize("ending", ["", "</thi"])
def test_a_thought_that_the_limit_cuts_is_no_answer(visit: Any, start: Any, script: Any, ending: str) -> None:
    text = f"<think>\n{THOUGHT}{ending}".encode()
    page = visit(start(script(lambda _: text), template=ThinkingTemplate()).url)
    page.click("#show-settings")
    page.fill("[name=max_tokens]", str(len(text)))
    ask(page, "hello")
    finished(page)
    page.locator(".assistant .thought summary").click()
    until(page, "document.querySelector('.assistant .thought p').textContent.includes('in one line')")
    assert body(page).inner_text() == ""
    assert "ended at the token limit" in page.locator(".turn.assistant .note").inner_text()


def test_a_call_that_nobody_offered_a_tool_for_is_shown_as_it_is(visit: Any, start: Any, script: Any) -> None:
    page = visit(start(script(lambda _: f"Let me see. {CALL}\n<b>bold</b> <img src=x>".encode())).url)
    ask(page, "weather?")
    finished(page)
    shown = body(page).inner_text()
    assert '{"name": "get_weather", "arguments": {"city": "Oslo"}}' in shown
    assert shown.count("tool_call>") == 2 and "<b>bold</b> <img src=x>" in shown
    assert body(page).locator("img, b").count() == 0


def test_a_very_long_answer_keeps_the_page_awake(visit: Any, start: Any, script: Any) -> None:
    line = "Some words of *prose* with `code` in them, and a [link](https://example.com) at the end of it all.\n"
    text = ((line * 6 + "\n") * 60 + "```python\n" + "print(1)\n" * 600 + "```\n\n") * 3 + "The end."
    live = start(script(lambda _: text.encode(), max_step=200, pause_s=0), max_context=300_000)
    page = visit(live.url)
    page.evaluate(
        """() => { window.frames_ = []; let last = performance.now();
        const tick = () => { const now = performance.now(); window.frames_.push(now - last);
        last = now; requestAnimationFrame(tick); }; requestAnimationFrame(tick); }"""
    )
    ask(page, "go on")
    page.wait_for_selector("#send:visible", timeout=60_000)
    assert body(page).inner_text().endswith("The end.")
    assert len(text) > 100_000
    slow = page.evaluate("window.frames_.sort((a, b) => b - a)[Math.floor(window.frames_.length / 20)]")
    print(f"{len(text)} characters; 19 of 20 frames within {slow:.0f} ms")
    assert slow < 1000
    page.fill("#prompt", "still here")
    assert page.input_value("#prompt") == "still here"
    top = page.evaluate("document.getElementById('scroll').scrollTop")
    assert top > 1000, "the end is in sight"


def test_a_reader_who_scrolls_up_is_left_there(visit: Any, start: Any, script: Any) -> None:
    live = start(script(lambda _: b"A line of some words.\n\n" * 150, max_step=40, pause_s=0.02))
    page = visit(live.url, viewport={"width": 900, "height": 500})
    ask(page, "go on")
    until(page, "document.getElementById('scroll').scrollTop > 200")
    page.hover("#scroll")
    page.mouse.wheel(0, -5000)
    until(page, "document.getElementById('scroll').scrollTop === 0")
    finished(page)
    assert page.evaluate("document.getElementById('scroll').scrollTop") == 0


def test_a_key_that_is_taken_back_is_asked_for_again(visit: Any, start: Any, script: Any) -> None:
    live = start(script(), api_keys=("secret",))
    page = visit(live.url)
    page.fill("#key-value", "wrong")
    page.press("#key-value", "Enter")
    until(page, "document.getElementById('key-why').textContent.toLowerCase().includes('key')")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key-value", "secret")
    page.press("#key-value", "Enter")
    page.wait_for_selector("#key-dialog:not([open])", state="attached")
    page.click("#show-settings")
    page.fill("#keys [name=api]", "revoked")
    page.press("#keys [name=api]", "Tab")
    ask(page, "hello")
    page.wait_for_selector("#key-dialog[open]")
    shot(page, "key")
    page.keyboard.press("Escape")
    finished(page)
    assert "key" in page.locator("#notice p").inner_text()
    page.locator("#notice button").click()
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key-value", "secret")
    page.press("#key-value", "Enter")
    until(page, "document.querySelector('.turn.assistant .body')?.textContent === 'Hello, world!'")
    assert page.locator(".turn").count() == 2


# --- readers ---------------------------------------------------------------------------------------------------------

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const over = (top, under) => top.slice(0, 3).map((c, i) => c * (top[3] ?? 1) + under[i] * (1 - (top[3] ?? 1)));
  const linear = (c) => (c <= 10.31475 ? c / 3294.6 : ((c / 255 + .055) / 1.055) ** 2.4);
  const light = (rgb) => { const [r, g, b] = rgb.map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const faults = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (node.closest(".hidden, .skip, :disabled, svg, option")) continue;
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    const ground = layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    const ink = over(parse(getComputedStyle(node).color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    looked += 1;
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) faults.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  return looked > 20 ? faults : ["nearly no text was looked at"];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(visit: Any, real: Any, scheme: str) -> None:
    page = visit(real.url, color_scheme=scheme)
    page.wait_for_selector("#cost-chart path.price")
    assert page.evaluate(CONTRAST) == []
    page.click("#tab-settings")
    page.fill("[name=max_tokens]", "60")
    ask(page, "abc abc abc abc `code` abc")
    finished(page)
    shot(page, f"{scheme}-answer")
    if "no drafts accepted" in page.locator(".turn.assistant .note").inner_text():
        assert page.locator(".draft").count() == 0, "what came together was no draft"
    assert page.evaluate(CONTRAST) == []
    page.context.set_offline(True)
    ask(page, "and now?")
    page.wait_for_selector("#notice:visible")
    page.click("#tab-server")
    until(page, "!document.getElementById('stale').hidden")
    shot(page, f"{scheme}-gone")
    assert page.evaluate(CONTRAST) == []


NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a, summary")].filter((node) => {
  if (!node.checkVisibility()) return false;
  const labels = [...(node.labels ?? [])].map((label) => label.textContent.trim()).join("");
  return !(node.getAttribute("aria-label") || labels || node.textContent.trim());
}).map((node) => node.outerHTML.slice(0, 80))"""


def test_everything_has_a_name_for_those_who_hear_the_page(visit: Any, real: Any) -> None:
    page = visit(real.url)
    page.wait_for_selector("#cost-chart path.price")
    page.click("#tab-settings")
    page.fill("[name=max_tokens]", "20")
    ask(page, "hello")
    finished(page)
    assert page.evaluate(NAMELESS) == []
    duplicates = page.evaluate(
        "() => { const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);"
        " return ids.filter((id, at) => ids.indexOf(id) !== at); }"
    )
    assert duplicates == []
    dangling = page.evaluate(
        """() => ['aria-controls', 'aria-labelledby', 'aria-describedby', 'for'].flatMap(
        (name) => [...document.querySelectorAll(`[${name}]`)].map((node) => node.getAttribute(name)))
        .filter((id) => id && !document.getElementById(id))"""
    )
    assert dangling == []
    roles = page.locator("#messages > li").evaluate_all("nodes => nodes.map((node) => node.getAttribute('aria-label'))")
    assert roles == ["You", "The model"]
    assert page.locator("[role=status]").first.inner_text().startswith("The model answered")
    assert page.locator("main, aside, header, nav, h1").count() >= 5


def test_a_conversation_by_keyboard_alone(visit: Any, start: Any, script: Any) -> None:
    live = start(script(lambda _: b"word " * 60, max_step=8, pause_s=0.01), api_keys=("secret",))
    page = visit(live.url)
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog:not([open])", state="attached")

    def focus(selector: str) -> None:
        for _ in range(60):
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{selector} is out of reach")

    focus("#prompt")
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:visible")
    page.keyboard.press("Escape")
    finished(page)
    assert page.evaluate("document.activeElement.id") == "prompt", "the next message can be written at once"
    page.evaluate("document.activeElement.blur()")
    focus(".turn.assistant .tools button:last-of-type")
    page.keyboard.press("Enter")
    finished(page)
    until(page, "document.querySelector('.turn.assistant .body').textContent.split('word').length === 61")
    page.evaluate("document.activeElement.blur()")
    focus(".turn.user .tools button:last-of-type")
    page.keyboard.press("Enter")
    until(page, "document.activeElement.className === 'edit'")
    page.keyboard.press("Control+A")
    page.keyboard.type("other")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.turn.user .body')?.textContent === 'other'")
    finished(page)


@pytest.mark.parametrize("width", [320, 375, 768])
def test_nothing_is_wider_than_a_phone(visit: Any, start: Any, script: Any, width: int) -> None:
    table = f"|{' column |' * 12}\n|{'---|' * 12}\n|{' value |' * 12}"
    wide = f"{'x' * 300}\n\n{table}\n\n```\n{'y' * 400}\n```\n"
    page = visit(start(script(lambda _: wide.encode())).url, viewport={"width": width, "height": 640}, has_touch=True)
    page.wait_for_selector("#prompt:visible")
    ask(page, "z" * 200)
    finished(page)
    shot(page, f"phone-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heights = page.locator("th, nav button").evaluate_all("nodes => nodes.map((n) => n.getBoundingClientRect().height)")
    assert len(heights) == 16 and max(heights) < 60, "words stay whole; the table scrolls"
    small = page.evaluate(
        "() => [...document.querySelectorAll('button, textarea, input')].filter((n) => n.checkVisibility()"
        " && n.getBoundingClientRect().height < 24).map((n) => n.outerHTML.slice(0, 60))"
    )
    assert small == [], "fingers need 24 pixels"
    assert page.evaluate("parseFloat(getComputedStyle(document.getElementById('prompt')).fontSize)") >= 16
