"""A headless Chromium for the tests of the page. Where it is missing they are skipped, and say what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")  # its event loop, which lives in this thread, must not outlast the tests that need it
def chromium() -> Iterator[Any]:
    """The browser."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Open]:
    """Opens the page of a server. A fault in a script, and a request that leaves the server, fail the test."""
    faults: list[str] = []
    contexts: list[Any] = []

    def begin(url: str, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 850}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.extend([message.text] * ("Security Policy" in message.text)))
        page.on("request", lambda request: None if request.url.startswith(url) else faults.append(request.url))
        page.goto(url)
        return page

    yield begin
    for context in contexts:
        context.close()
    assert faults == []
