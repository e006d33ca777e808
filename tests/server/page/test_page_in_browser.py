"""The page in a real browser against live servers: what a reader does, and what goes wrong for them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot.kernels.errors import RequestError

pytestmark = pytest.mark.slow

LONG = b"word " * 400


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def until(page: Any, expression: str, argument: object = None) -> None:
    """Waits in here: the page's policy forbids the evaluation that wait_for_function does in there."""
    deadline = time.monotonic() + 15
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def last_answer(page: Any) -> Any:
    return page.locator(".turn.assistant").last


def finished(page: Any) -> None:
    page.wait_for_selector("#send:visible")


@pytest.fixture
def scripted(start: Any, script: Any) -> Any:
    """A server that repeats the last message in capitals, in markdown, a few bytes at a time."""

    def answer(submission: Any) -> bytes:
        question = bytes(token for token in submission.prompt_ids if token < 256).decode().split("user:")[-1]
        return f"**{question.partition(chr(10))[0].upper()}**\n\n```python\nprint(1)\n```\n".encode()

    return start(script(answer, max_step=3, pause_s=0.01), api_keys=("secret",), admin_key="root")


def unlock(page: Any) -> None:
    page.fill("#key-value", "secret")
    page.press("#key-value", "Enter")
    page.wait_for_selector("#key-dialog:not([open])", state="attached")


def test_a_conversation_from_the_key_to_an_edit(visit: Any, scripted: Any) -> None:
    page = visit(scripted.url)
    assert page.locator("#key-title").inner_text() == "API key"
    unlock(page)
    until(page, "document.getElementById('model').textContent === 'tiny'")
    ask(page, "first")
    finished(page)
    assert last_answer(page).locator("strong").inner_text() == "FIRST"
    assert last_answer(page).locator("pre").inner_text() == "print(1)"
    assert "tokens" in last_answer(page).locator(".note").inner_text()
    ask(page, "second")
    finished(page)
    assert page.locator(".turn").count() == 4

    page.locator(".turn.user").first.hover()
    page.locator(".turn.user").first.get_by_text("Edit").click()
    page.fill(".edit", "other\nline")
    page.press(".edit", "Enter")
    until(page, "document.querySelectorAll('.turn').length === 2")
    finished(page)
    assert last_answer(page).locator("strong").inner_text() == "OTHER"
    assert page.locator(".turn.user .body").inner_text() == "other\nline"

    sent = len(scripted.engine.submissions)
    last_answer(page).get_by_text("Regenerate").click()
    until(page, "document.querySelector('.turn.assistant .note')?.textContent.includes('tokens')")
    assert len(scripted.engine.submissions) == sent + 1
    assert last_answer(page).locator("strong").inner_text() == "OTHER"
    assert page.evaluate("Object.values(localStorage).join()").count("secret") == 0

    page.reload()  # the conversation of a tab survives
    assert last_answer(page).locator("strong").inner_text() == "OTHER"
    page.click("#new-chat")
    assert page.locator(".turn").count() == 0
    page.reload()
    assert page.locator(".turn").count() == 0


def test_text_appears_while_it_is_made_and_escape_stops_it(
    visit: Any, start: Any, script: Any, eventually: Callable[..., bool]
) -> None:
    live = start(script(lambda _: LONG, max_step=4, pause_s=0.02), api_keys=("secret",))
    page = visit(live.url)
    unlock(page)
    ask(page, "go on")
    page.wait_for_selector("#stop:visible")
    until(page, "document.querySelector('.turn.assistant .body').textContent.length > 20")
    some = len(last_answer(page).locator(".body").inner_text())
    until(page, "n => document.querySelector('.turn.assistant .body').textContent.length > n", some)
    page.keyboard.press("Escape")
    finished(page)
    assert eventually(lambda: len(live.engine.cancelled) == 1)
    text = last_answer(page).locator(".body").inner_text()
    assert 20 < len(text) < len(LONG)
    assert last_answer(page).locator(".note").inner_text().startswith("Stopped.")
    time.sleep(0.2)
    assert last_answer(page).locator(".body").inner_text() == text
    assert "Administration is off" in page.locator("#admin-locked-text").inner_text()


def test_shift_enter_is_a_new_line_and_the_system_prompt_and_settings_are_sent(visit: Any, scripted: Any) -> None:
    page = visit(scripted.url)
    unlock(page)
    page.click("#show-settings")
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=temperature]", "0.5")
    page.fill("[name=max_tokens]", "7")
    page.reload()  # settings stay, and so does the key of this tab
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.locator("#prompt").press_sequentially("two")
    assert page.input_value("#prompt") == "one\ntwo"
    page.press("#prompt", "Enter")
    finished(page)
    submission = scripted.engine.submissions[-1]
    assert bytes(submission.prompt_ids).decode() == "system:Be brief.\nuser:one\ntwo\nassistant:"
    assert (submission.params.temperature, submission.params.max_tokens) == (0.5, 7)
    assert "token limit" in last_answer(page).locator(".note").inner_text()


def test_errors_are_told_in_words(visit: Any, start: Any, script: Any) -> None:
    shown = script(lambda _: LONG, max_step=4, pause_s=0.005)
    live = start(shown, api_keys=("secret",), max_context=500)
    page = visit(live.url)
    unlock(page)
    notice = page.locator("#notice p")
    shown.refuse = RequestError("The server is full", status=429, kind="rate_limit_error", retry_after=2)
    ask(page, "hello")
    assert "no room" in notice.inner_text()
    again = page.locator("#notice button")
    assert again.is_disabled()
    assert "Try again in" in again.inner_text()
    shown.refuse, shown.fail_after = None, 40
    again.click()  # waits until it is enabled
    until(page, "document.getElementById('notice').textContent.includes('NaN in the logits')")
    assert last_answer(page).locator(".body").inner_text().startswith("word word")  # what came is kept
    shown.fail_after = None
    page.click("#new-chat")
    ask(page, "x" * 600)
    assert "no longer fits" in notice.inner_text()


def test_a_server_that_is_gone_is_said_so(visit: Any, start: Any) -> None:
    live = start(api_keys=("secret",))
    page = visit(live.url)
    unlock(page)
    page.context.set_offline(True)
    ask(page, "hello")
    assert "does not answer" in page.locator("#notice p").inner_text()
    until(page, "!document.getElementById('stale').hidden")
    page.context.set_offline(False)
    ask(page, "are you there?")  # two questions in a row reach the template as one message
    finished(page)
    until(page, "document.querySelector('.turn.assistant .body')?.textContent === 'Hello, world!'")
    prompt = bytes(live.engine.submissions[-1].prompt_ids).decode()
    assert prompt == "user:hello\n\nare you there?\nassistant:"
    assert page.locator("#notice").is_hidden()


def test_the_policy_switch_and_the_tint(visit: Any, real: Any) -> None:
    def policy() -> Any:
        return httpx.get(f"{real.url}/admin/speculation").json()["policy"]

    page = visit(real.url)
    page.wait_for_selector("#admin-open:visible")
    page.wait_for_selector("#cost-chart path.price")
    page.locator("#policy [name=enabled]").uncheck()
    until(page, "document.getElementById('policy-answer').textContent.startsWith('In force')")
    assert policy()["enabled"] is False
    page.locator("#policy [name=enabled]").check()
    page.select_option("#policy [name=governor]", "off")
    page.fill("#policy [name=draft_tokens]", "4")
    page.press("#policy [name=draft_tokens]", "Tab")
    until(page, "document.getElementById('cost-caption').textContent.includes('no cost curve')")
    assert (policy()["enabled"], policy()["governor"], policy()["draft_tokens"]) == (True, "off", 4)

    page.click("#tab-settings")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "200")
    ask(page, "abc abc abc abc")
    finished(page)
    assert "drafted accepted" in last_answer(page).locator(".note").inner_text()
    draft = page.locator(".tinted .draft").first
    tinted = draft.evaluate("node => getComputedStyle(node).backgroundColor")
    assert tinted != "rgba(0, 0, 0, 0)"
    page.locator("[name=tint]").uncheck()
    assert page.locator(".draft").first.evaluate("node => getComputedStyle(node).backgroundColor") == "rgba(0, 0, 0, 0)"

    page.click("#tab-server")
    page.select_option("#policy [name=type]", "draft-model")
    page.wait_for_selector("#policy-answer li")
    assert "draft model" in page.locator("#policy-answer li").first.inner_text()
    page.fill("#policy [name=draft_tokens]", "65")
    page.press("#policy [name=draft_tokens]", "Tab")
    until(page, "!document.getElementById('policy-answer').textContent.startsWith('In force')")
    assert policy()["draft_tokens"] == 4
    body = {"type": "auto", "governor": "cost", "draft_tokens": None}
    assert httpx.patch(f"{real.url}/admin/speculation", json=body).status_code == 200


def test_of_tokens_that_come_together_all_but_the_last_are_tinted(visit: Any, start: Any, script: Any) -> None:
    answers = script(lambda _: b"a few words " * 12, max_step=4, pause_s=0.005)
    page = visit(start(answers, api_keys=("secret",)).url)
    unlock(page)
    with page.expect_response("**/v1/chat/completions") as reply:
        ask(page, "go")
    finished(page)
    events = [json.loads(line[6:]) for line in reply.value.text().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"] if choice.get("token_ids")]
    assert any(len(choice["token_ids"]) > 1 for choice in choices)
    drafted = "".join(choice["delta"]["content"][: len(choice["token_ids"]) - 1] for choice in choices)
    assert "".join(page.locator(".draft").all_text_contents()) == drafted
    answers.max_step = 1
    ask(page, "again")
    finished(page)
    assert last_answer(page).locator(".draft").count() == 0


def brightness(page: Any) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in colour.strip("rgb()").split(",")) / 3


def test_dark_light_and_phone(visit: Any, real: Any, tmp_path: Path) -> None:
    page = visit(real.url, color_scheme="dark")
    page.wait_for_selector("#cost-chart path.price")
    assert brightness(page) < 60
    page.click("#theme")
    assert brightness(page) > 200
    light = page.screenshot(path=tmp_path / "light.png")
    page.reload()
    assert brightness(page) > 200  # the choice is kept
    page.click("#theme")
    assert brightness(page) < 60
    page.wait_for_selector("#cost-chart path.price")
    assert page.screenshot(path=tmp_path / "dark.png") != light

    phone = visit(real.url, viewport={"width": 360, "height": 720}, has_touch=True)
    phone.wait_for_selector("#prompt:visible")
    assert not phone.locator("aside").is_visible()
    for button in ("#show-server", "#show-settings"):
        phone.click(button)
        assert phone.locator("aside").is_visible()
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    phone.keyboard.press("Escape")
    assert not phone.locator("aside").is_visible()
    phone.screenshot(path=tmp_path / "phone.png")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit: Any, real: Any) -> None:
    page = visit(real.url)
    page.wait_for_selector("#admin-open:visible")
    page.evaluate("document.activeElement.blur()")
    seen: set[str] = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            "[document.activeElement.id || document.activeElement.name || '',"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert ring != "none" or name in ("", "scroll"), name
        seen.add(name)
    wanted = {"new-chat", "show-server", "show-settings", "theme", "prompt", "send", "tab-server", "enabled", "type"}
    assert wanted | {"governor", "draft_tokens", "max_batch"} <= seen
