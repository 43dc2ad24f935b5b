"""The page at /, in a headless Chromium: what it shows, by keyboard, to a screen reader, in light
and dark. QUIRE_SCREENSHOTS=DIR keeps the pictures."""

import os
import re
import threading
from pathlib import Path

import pytest

import chromium_pipe
import quire_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a fortune"
KEYS = """
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef"]
quota = "8MiB"
[[tenant]]
name = "bob"
keys = ["bob-0123456789abcdef"]
[[tenant]]
name = "ops"
keys = ["ops-0123456789abcdef"]
operator = true
"""
ALICE, BOB, OPS = (f"{name}-0123456789abcdef" for name in ("alice", "bob", "ops"))

pytestmark = pytest.mark.skipif(chromium_pipe.program() is None,
                                reason="chromium is not installed (scripts/install-deps --dev)")


def pictures(tmp_path):
    folder = Path(os.environ.get("QUIRE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def warm(server, key=None):
    for tail in (" must be in want of a wife", " may keep a horse and two servants", ""):
        server.ask("/v1/completions", {"prompt": PROMPT + tail, "max_tokens": 40}, key=key)


def test_shows_the_cache_and_what_a_prompt_reused(tmp_path):
    with quire_server.serving(tmp_path, "--hot-bytes", "16MiB") as server, \
            chromium_pipe.page(tmp_path, server.url + "/") as page:
        warm(server)
        page.wait("document.querySelectorAll('#tenants tr').length === 1 && "
                  "document.getElementById('tenants').innerText.includes('default')")
        page.wait("document.getElementById('tree').innerText.includes('3 prompts')")
        page.wait("document.getElementById('index').innerText.includes('in memory')")
        assert page.evaluate("document.getElementById('index').innerText").count("tokens") >= 3
        assert "published blocks of 16 tokens" in page.evaluate(
            "document.getElementById('indextext').textContent")
        assert "tiny" in page.evaluate("document.getElementById('model').textContent")
        # By keyboard alone: to the prompt, other text, on to the button, and there the space key.
        page.evaluate("document.getElementById('prompt').focus()")
        page.evaluate("document.getElementById('prompt').select()")
        page.send("Input.insertText", text=PROMPT)
        for _ in range(2):
            page.key("Tab", 9)
        assert page.evaluate("document.activeElement.textContent") == "Complete"
        page.key("Enter", 13, "\r")
        said = page.wait("document.getElementById('said').textContent.includes('found') && "
                         "document.getElementById('said').textContent")
        found = int(re.match(r"(\d+) of (\d+) prompt tokens", said).group(1))
        assert found == len(PROMPT) // 16 * 16 or found == (len(PROMPT) - 1) // 16 * 16
        assert page.evaluate("document.querySelectorAll('#answer mark.reused').length") == found
        assert page.evaluate("document.querySelectorAll('#answer mark.computed').length") == \
            len(PROMPT) - found
        answer = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 48})[1]
        assert page.evaluate("document.querySelector('#answer mark.made').textContent") == \
            answer["choices"][0]["text"]
        assert "square" in page.evaluate("document.getElementById('maptext').textContent")
        # What is found now, and what a cache by recency of this size would find, in one unit.
        page.evaluate("document.getElementById('pause').click()")
        curve = page.evaluate("document.getElementById('iftext').textContent")
        now = re.search(r"([\d.]+) % at 1 times the size", curve).group(1)
        cards = page.evaluate("document.getElementById('cards').innerText")
        found = float(re.search(r"Prompt tokens found\s+([\d.]+) %", cards).group(1))
        assert abs(float(now) - found) < 1, (curve, cards)
        rows = page.evaluate("[...document.querySelectorAll('#reasons th')].map(row => row.textContent)")
        assert rows[0] == "found in the cache" and len(rows) > 1
        assert all(row.startswith("computed: ") for row in rows[1:]), rows
        folder = pictures(tmp_path)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.wait("true")
            page.screenshot(folder / f"page-{scheme}.png")
        page.size(400, 800)
        assert page.evaluate("document.documentElement.scrollWidth <= 400"), "wider than a phone"
        # Tables are as wide as they must be, in boxes that scroll.
        assert page.evaluate("[...document.querySelectorAll('table')].every(table => "
                             "table.parentElement.className === 'scroll' && "
                             "table.parentElement.scrollWidth > table.parentElement.clientWidth)")
        page.screenshot(folder / "page-narrow.png")
        assert not page.errors, page.errors


def test_a_screen_reader_is_told(tmp_path):
    with quire_server.serving(tmp_path) as server, \
            chromium_pipe.page(tmp_path, server.url + "/") as page:
        warm(server)
        page.wait("document.getElementById('tenants').innerText.includes('default')")
        told = page.accessible()
        for role, name in [("heading", "Quire"), ("main", ""), ("button", "Pause"),
                           ("textbox", "Prompt"), ("button", "Complete"), ("region", "Now"),
                           ("table", "Bytes charged to each tenant, in the fast tier and in the store below it"),
                           ("combobox", "Tenant"), ("link", "Skip to the content")]:
            assert (role, name) in told, (role, name, told)
        images = [name for role, name in told if role in ("image", "img")]
        assert len(images) == 2 and all(images), images
        assert all(name for role, name in told
                   if role in ("button", "textbox", "spinbutton", "combobox", "progressbar")), told
        assert page.evaluate("document.documentElement.lang") == "en"
        # Every control can be reached, and shows that it is.
        page.evaluate("document.activeElement.blur()")
        reached = set()
        for _ in range(25):
            page.key("Tab", 9)
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            assert page.evaluate("document.activeElement === document.body || getComputedStyle("
                                 "document.activeElement).outlineStyle !== 'none'")
        assert {"pause", "prompt", "tokens", "answer", "who"} <= reached, reached
        # Moving contents can be stopped.
        page.evaluate("document.getElementById('pause').click()")
        assert page.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"


CONTRAST = """(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 :
      Math.pow((v + 0.055) / 1.055, 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!own || !node.getClientRects().length || node.closest('svg, script, style')) continue;
    const a = light(parse(getComputedStyle(node).color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(node.tagName + ' ' + node.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return bad;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(tmp_path, scheme):
    """WCAG AA: 4.5 to 1 for text."""
    with quire_server.serving(tmp_path) as server, \
            chromium_pipe.page(tmp_path, server.url + "/") as page:
        warm(server)
        page.colours(scheme)
        page.wait("document.getElementById('tree').innerText.includes('3 prompts')")
        page.evaluate("document.getElementById('try').requestSubmit()")
        page.wait("document.getElementById('said').textContent.includes('found')")
        assert page.evaluate(CONTRAST) == []


def test_a_key_shows_what_it_may_see(tmp_path):
    (tmp_path / "keys.toml").write_text(KEYS)
    with quire_server.serving(tmp_path, "--api-keys", tmp_path / "keys.toml", "--hot-bytes",
                              "32MiB") as server, \
            chromium_pipe.page(tmp_path, server.url + "/") as page:
        warm(server, ALICE)
        warm(server, BOB)
        page.wait("document.getElementById('problem').textContent.includes('API key')")
        page.errors.clear()  # the 401 was logged
        page.evaluate("document.getElementById('key').focus()")
        page.send("Input.insertText", text=BOB)
        page.key("Enter", 13, "\r")
        page.wait("document.getElementById('tenants').innerText.includes('bob')")
        whole = page.evaluate("document.body.innerText")
        assert "alice" not in whole and "ops" not in whole
        assert page.evaluate("document.getElementById('mapbox').offsetParent === null")
        page.evaluate(f"key = '{OPS}'; refresh()")
        page.wait("document.getElementById('tenants').innerText.includes('alice')")
        # While calls run, each is there with how far it is.
        done = threading.Event()

        def load():
            while not done.is_set():
                server.ask("/v1/completions", {"prompt": PROMPT * 20, "max_tokens": 400,
                                               "reuse": False}, key=ALICE)
        thread = threading.Thread(target=load)
        thread.start()
        try:
            page.wait("document.querySelector('#calls progress') && "
                      "document.getElementById('calls').innerText.includes('alice')")
            page.screenshot(pictures(tmp_path) / "page-operator.png")
        finally:
            done.set()
            thread.join()
        assert not page.errors, page.errors
