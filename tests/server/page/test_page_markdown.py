"""The page's markdown: what it builds, that it builds nothing else, and that growing text ends in the same elements."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

_RENDER = """async ([source, flags, steps]) => {
  const { renderMarkdown } = await import("/page/markdown.js");
  const container = document.createElement("div");
  for (let n = steps; n < source.length; n += steps) renderMarkdown(container, source.slice(0, n), flags.slice(0, n));
  renderMarkdown(container, source, flags);
  return container.innerHTML;
}"""

CASES = [
    ("plain\ntext", "<p>plain\ntext</p>"),
    ("**bold** and *soft* and `co*de*`", "<p><strong>bold</strong> and <em>soft</em> and <code>co*de*</code></p>"),
    ("snake_case_name, 2 * 3 * 4, **open", "<p>snake_case_name, 2 * 3 * 4, **open</p>"),
    ("***both***", "<p><strong><em>both</em></strong></p>"),
    (r"\*not\* ~~gone~~", "<p>*not* <del>gone</del></p>"),
    ("# One\n## Two", "<h3>One</h3><h4>Two</h4>"),
    ("- a\n- b\n  - c\n\ntext", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>"),
    ("3. x\n4. y", '<ol start="3"><li>x</li><li>y</li></ol>'),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("---", "<hr>"),
    (
        "|a|b|\n|-|:-:|\n|1|**2**|",
        '<div class="table"><table><thead><tr><th class="">a</th><th class="center">b</th></tr></thead><tbody>'
        '<tr><td class="">1</td><td class="center"><strong>2</strong></td></tr></tbody></table></div>',
    ),
    (
        "<b>x</b> &amp; <script>alert(1)</script>",
        "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp; &lt;script&gt;alert(1)&lt;/script&gt;</p>",
    ),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
]

LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
DOCUMENT = """# A

Text with **bold *and* soft**
more `code`

- one
- two

  ```py
  x = 1
  ```

| a | b |
|---|---|
| 1 | 2 |

> said

end"""
HOSTILE = ["*" * 30_000, "[" * 30_000, "> " * 3000, "`" * 5 + "a" * 30_000, "- " * 3000, "a*" * 15_000, "|" * 9000]


@pytest.fixture(scope="module")
def page(chromium: Any, plain: Any) -> Any:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(plain.url + "/page/style.css")  # a document under the page's policy, without its scripts
    yield page
    context.close()


def rendered(page: Any, source: str, flags: str | None = None, steps: int = 10**9) -> str:
    return page.evaluate(_RENDER, [source, flags if flags is not None else "0" * len(source), steps])


@pytest.mark.parametrize(("source", "expected"), CASES)
def test_what_is_built(page: Any, source: str, expected: str) -> None:
    html = rendered(page, source)
    assert html.replace(' tabindex="0"', "") == expected


def test_links_open_elsewhere_and_pictures_are_links(page: Any) -> None:
    assert (
        rendered(page, "[a *b*](https://x.test/p_(q))")
        == f"<p>{LINK.format('https://x.test/p_(q)', 'a <em>b</em>')}</p>"
    )
    assert rendered(page, "![p](https://x.test/i.png)") == f"<p>{LINK.format('https://x.test/i.png', 'p')}</p>"
    address = LINK.format("https://x.test/a_b_c", "https://x.test/a_b_c")
    assert rendered(page, "(see https://x.test/a_b_c).") == f"<p>(see {address}).</p>"


def test_code_keeps_every_character_even_before_it_is_closed(page: Any) -> None:
    for source in ("```c\nint *a;\n\n  b < c && d;\n```", "```c\nint *a;\n\n  b < c && d;"):
        html = rendered(page, source)
        assert "<code>int *a;\n\n  b &lt; c &amp;&amp; d;</code>" in html
        assert "<span>c</span>" in html


def test_growing_text_ends_in_the_same_elements(page: Any) -> None:
    whole = rendered(page, DOCUMENT)
    assert "<table>" in whole
    assert "x = 1" in whole
    for steps in (1, 3, 7):
        assert rendered(page, DOCUMENT, steps=steps) == whole


def test_the_tint_lies_under_any_formatting(page: Any) -> None:
    source = "a **bcd** `ef` g"
    flags = "".join("1" if char in "cde" else "0" for char in source)
    tint = '<span class="draft">{}</span>'.format
    expected = f"<p>a <strong>b{tint('cd')}</strong> <code>{tint('e')}f</code> g</p>"
    assert rendered(page, source, flags) == expected


@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: source[:6])
def test_hostile_text_takes_no_time(page: Any, source: str) -> None:
    page.set_default_timeout(5000)
    milliseconds = page.evaluate(
        """async (source) => {
          const { renderMarkdown } = await import("/page/markdown.js");
          const started = performance.now();
          renderMarkdown(document.createElement("div"), source, "");
          return performance.now() - started;
        }""",
        source,
    )
    assert milliseconds < 2000
