"""The page's files and how they are served: complete, typed, closed to everything outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot.engine.speculation.contract import MAX_WINDOW
from surefoot.engine.speculation.governor import GOVERNORS
from surefoot.engine.speculation.registry import AUTO, BUILTIN
from surefoot.server.api.page import FILES, FOLDER

NAMES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in NAMES if name.endswith(".js")]
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Markup(HTMLParser):
    """What the page's markup says: attributes by tag, ids, and the options of its selects."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.options: dict[str, list[str]] = {}
        self._select: str | None = None
        self._in_option = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "select":
            self._select = dict(attrs)["name"]
        self._in_option = tag == "option"

    def handle_endtag(self, tag: str) -> None:
        self._in_option = False

    def handle_data(self, data: str) -> None:
        if self._in_option and self._select is not None:
            self.options.setdefault(self._select, []).append(data)


@pytest.fixture(scope="module")
def markup() -> Markup:
    parsed = Markup()
    parsed.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    return parsed


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_served_as_it_is_with_its_type(plain: Any, name: str) -> None:
    answer = httpx.get(f"{plain.url}/page/{name}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_the_root_is_the_page_and_the_policy_lets_nothing_in(plain: Any) -> None:
    answer = httpx.get(plain.url + "/")
    assert answer.content == FILES["index.html"].data
    parts = [part.strip().partition(" ") for part in str(answer.headers["content-security-policy"]).split(";")]
    policy = {name: value for name, _, value in parts}
    assert policy["default-src"] == "'self'"
    assert policy["object-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert not any(name.endswith("-src") and value not in ("'self'", "'none'") for name, value in policy.items())


def test_a_known_version_is_not_sent_again(plain: Any) -> None:
    with httpx.Client(base_url=plain.url) as client:
        tag = client.get("/page/app.js").headers["etag"]
        again = client.get("/page/app.js", headers={"If-None-Match": f'"other", W/{tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert client.get("/page/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
        assert client.get("/page/style.css").headers["etag"] != tag


def test_head_has_the_headers_only(plain: Any) -> None:
    answer = httpx.head(plain.url + "/")
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-length"] == str(len(FILES["index.html"].data))


@pytest.mark.parametrize("path", ["/page/none.js", "/page/..%2Fapi%2Fpage.py", "/page/%2e%2e/app.py", "/page/"])
def test_nothing_else_is_served(plain: Any, path: str) -> None:
    answer = httpx.get(plain.url + path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"


def test_the_page_is_no_part_of_the_api(plain: Any) -> None:
    paths = httpx.get(plain.url + "/openapi.json").json()["paths"]
    assert "/v1/chat/completions" in paths
    assert not any(path == "/" or path.startswith("/page") for path in paths)


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_an_address_outside(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    for namespace in ('xmlns="http://www.w3.org/2000/svg"', 'SVG = "http://www.w3.org/2000/svg"'):
        text = text.replace(namespace, "")  # a name, never fetched
    assert re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text) == []
    assert "@import" not in text
    assert "url(" not in text


def test_every_file_the_page_names_exists_and_every_file_is_named(markup: Markup) -> None:
    named = {
        value.removeprefix("page/")
        for _, attributes in markup.tags
        for key in ("src", "href")
        if (value := attributes.get(key)) and not value.startswith("#")
    }
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([\w.]+)"', (FOLDER / script).read_text(encoding="utf-8")))
    assert named | {"index.html"} == set(NAMES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_cannot_turn_text_into_markup_or_code(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    sinks = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "setHTML"]
    assert [sink for sink in (*sinks, "DOMParser", "createContextualFragment", "srcdoc") if sink in text] == []


def test_keys_stay_in_the_tab() -> None:
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS}
    assert "sessionStorage" in texts["api.js"]
    stored = {found for text in texts.values() for found in re.findall(r"localStorage\.setItem\((.*?),", text)}
    assert stored == {"STORED", '"surefoot.theme"'}
    assert "document.cookie" not in "".join(texts.values())


def test_markup_is_labelled_and_has_no_inline_code(markup: Markup) -> None:
    ids = [attributes["id"] for _, attributes in markup.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in markup.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        for name in ("for", "aria-controls", "aria-labelledby", "aria-describedby"):
            assert attributes.get(name) is None or attributes[name] in ids
        assert tag != "script" or attributes.get("src")


def test_scripts_use_ids_that_exist(markup: Markup) -> None:
    ids = {attributes["id"] for _, attributes in markup.tags if "id" in attributes}
    for name in SCRIPTS:
        used = set(re.findall(r'byId\("([\w-]+)"\)', (FOLDER / name).read_text(encoding="utf-8")))
        assert used <= ids, name


def test_the_policy_form_offers_what_the_engine_knows(markup: Markup) -> None:
    assert set(markup.options["type"]) == {AUTO, *BUILTIN}
    assert set(markup.options["governor"]) == set(GOVERNORS)
    window = next(attributes for _, attributes in markup.tags if attributes.get("name") == "draft_tokens")
    assert window["max"] == str(MAX_WINDOW)


def test_the_wheel_takes_the_page_along() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"surefoot/server" = "server"' in project  # the whole folder
    excluded = re.search(r"wheel\.exclude = \[(.*)\]", project)
    assert excluded is not None
    assert not any(f".{kind}" in excluded[1] for kind in TYPES)
