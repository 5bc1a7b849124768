"""The page in a real browser: it lives, ends, reconnects, and fits on a phone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hubless.watch.feed import open_feed
from hubless.watch.live.web import serving
from tests.watch import runs

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Visit = Callable[..., AbstractContextManager[Any]]
MILLISECONDS = 120_000
"""How long to wait for what is sure to come."""
SERVE = (
    "import sys; from hubless.watch.feed import open_feed;"
    "from hubless.watch.live.web import serve;"
    "serve(open_feed(sys.argv[1]), port=int(sys.argv[2]), interval=0.1)"
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Shows a page; whatever it complains about, or asks of another host, fails the test.

    It is closed before its server ends: a page that has lost its server complains of that.
    """
    complaints: list[str] = []

    @contextmanager
    def go(
        url: str, width: int = 1200, scheme: str = "light", forgiving: bool = False
    ) -> Iterator[Any]:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        if not forgiving:
            page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                asked.url.startswith((url.split("?")[0], "data:")) or complaints.append(asked.url)
            ),
        )
        try:
            page.goto(url, timeout=MILLISECONDS)
            yield page
        finally:
            page.close()

    yield go
    assert complaints == []


def expect(page: Any, selector: str, pattern: str) -> None:
    located = playwright.expect(page.locator(selector))
    located.to_have_text(re.compile(pattern), timeout=MILLISECONDS)


def overflows(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def painted(page: Any, selector: str) -> int:
    """How many colours a canvas shows."""
    return int(
        page.eval_on_selector(
            selector,
            """canvas => {
                const {width, height} = canvas;
                const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
                const colours = new Set();
                for (let i = 0; i < pixels.length; i += 4)
                    if (pixels[i + 3] > 250) colours.add(pixels.slice(i, i + 3).join());
                return colours.size;
            }""",
        )
    )


def shot(page: Any, name: str) -> None:
    """Keep a picture for people to look at, where they asked for it."""
    if folder := os.environ.get("HUBLESS_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_the_page_follows_a_run_that_goes_on_and_ends_with_it(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    with serving(open_feed(path), interval=0.1) as url, visit(url) as page:
        expect(page, "#status", "nothing yet")
        runs.start(path, rounds=12)
        for number in range(1, 12):
            runs.train(path, number)
            expect(page, "#figures", f"^round{number} of 12")
            expect(page, "#status", "live")
        expect(page, "#figures", "left")
        shot(page, "live")
        runs.train(path, 12)
        runs.end(path, 12)
        expect(page, "#status", "ended, complete")
        expect(page, "#figures", "round12 of 12")
        assert page.locator(".chart").count() == 2
        assert page.get_attribute("#progress", "aria-valuenow") == "12"
        assert painted(page, ".chart canvas") > 3


def test_a_run_that_has_ended_is_drawn_over_rounds_time_and_bytes(
    visit: Visit, tmp_path: Path
) -> None:
    for name in ("uniform", "active"):
        runs.whole_run(tmp_path / f"{name}.jsonl", name, rounds=40)
    with serving(open_feed(tmp_path)) as url, visit(url) as page:
        expect(page, "#status", "ended, complete")
        assert page.locator(".run").count() == 2
        chart = page.locator(".chart canvas").first
        chart.hover(position={"x": 150, "y": 60})
        expect(page, ".chart .caption >> nth=0", r"^round \d+: (uniform|active) [\d.]+, ")
        page.get_by_label("time").check()
        chart.hover(position={"x": 151, "y": 60})
        expect(page, ".chart .caption >> nth=0", r"^after \d+ s: ")
        page.get_by_label("bytes").check()
        chart.hover(position={"x": 152, "y": 60})
        expect(page, ".chart .caption >> nth=0", r"^after [\d.]+ MiB: ")
        page.get_by_role("radio", name="uniform").check()
        assert page.locator(".run:has(input:checked) .run-name").text_content() == "uniform"


def test_everything_can_be_reached_with_the_keyboard(visit: Visit, tmp_path: Path) -> None:
    path = runs.whole_run(tmp_path / "events.jsonl")
    with serving(open_feed(path)) as url, visit(url) as page:
        expect(page, "#status", "ended")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        assert page.is_checked("input[value=time]")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowLeft")
        expect(page, ".chart .caption >> nth=0", "^round 10: 0.7358")
        page.keyboard.press("ArrowLeft")
        expect(page, ".chart .caption >> nth=0", "^round 9: ")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        expect(page, "#strip-caption", r"^\d+, round 10: ")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        expect(page, "#strip-caption", r"^\d+, round 9: ")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.is_visible("#facts")


def test_a_refused_client_is_shown_with_the_reason(visit: Visit, tmp_path: Path) -> None:
    runs.asynchronous(tmp_path, sites=3)
    runs.spoil_newest(tmp_path, "site-1")
    with serving(open_feed(tmp_path)) as url, visit(url) as page:
        expect(page, "#counts", "3 left")
        expect(page, "#trouble", "site-1 refused.*pickle")
        expect(page, "#marks", "refused")
        expect(page, "#lines", "all members.*site-0")
        page.hover("#strip", position={"x": 60, "y": 18 + 14 + 7})
        expect(
            page,
            "#strip-caption",
            "^site-1, .*: refused, trained. now left, update 3, 200 examples",
        )
        shot(page, "refused")


def test_text_from_the_bucket_is_shown_as_text(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    nasty = "<img src=x onerror=alert(1)>"
    runs.say(path, "offline", client=nasty, reason=f"</p><script>alert(2)</script>{nasty}")
    runs.start(path, nasty)
    runs.train(path, 1, nasty, metrics={nasty: 1.0, "__proto__": 2.0})
    with serving(open_feed(path)) as url, visit(url) as page:
        expect(page, "#trouble", re.escape(nasty))
        expect(page, ".chart h3 >> nth=0", re.escape(nasty))
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert page.locator(".chart").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_thousand_clients_fit_on_any_screen(
    visit: Visit, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path, rounds=400, clients=1000)
    for number in range(1, 301):
        runs.train(path, number, clients=1000, size=50)
    with serving(open_feed(path)) as url, visit(url, width=width, scheme=scheme) as page:
        expect(page, "#strip-caption", "there are 800 more clients")
        expect(page, "#counts", "50 trained1 late949 idle")
        # on a phone two of them share one
        expect(page, "#strip-title", f"{8 if width < 500 else 4} rounds to a cell")
        assert not overflows(page)
        assert painted(page, "#strip") > 5
        shot(page, f"thousand-{scheme}-{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_federation_with_long_names_does_not_scroll_sideways_on_a_phone(
    visit: Visit, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / ("a-folder-with-a-name-that-goes-on-and-on-and-on" * 3)
    path.mkdir()
    for i in range(12):
        client = f"hospital-of-{'saint-' * 6}{i}"
        runs.say(path / "e.jsonl", "joined", client=client, url="s3://b/r", mode="sync")
        for number in range(6):
            key = f"rounds/{number:08d}/updates/x"
            metrics = {"a-metric-with-a-name-that-does-not-fit-anywhere-at-all-on-a-phone": i / 2}
            fields = {"key": key, "sequence": number, "examples": 9, "bytes": 7, "metrics": metrics}
            runs.say(path / "e.jsonl", "pushed", client=client, **fields)
        runs.say(path / "e.jsonl", "offline", client=client, reason=f"{'x' * 300} timed out")
        runs.say(path / "e.jsonl", "late", client=client, round=i % 6)
    with serving(open_feed(path)) as url, visit(url, width=360, scheme=scheme) as page:
        expect(page, "#counts", "12 late")
        page.get_by_text("What it is made of").click()
        assert not overflows(page)
        shot(page, f"long-{scheme}-360")


def test_the_page_reconnects_by_itself_when_the_server_comes_back(
    visit: Visit, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    runs.train(path, 1)

    def serve(port: int) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", SERVE, str(path), str(port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        line = re.search(r"watching at http://127.0.0.1:(\d+)", server.stdout.readline())
        assert line is not None
        return server, int(line[1])

    server, port = serve(0)
    try:
        # a browser complains of a connection that is lost
        with visit(f"http://127.0.0.1:{port}/", forgiving=True) as page:
            expect(page, "#figures", "round1 of 10")
            server.kill()
            server.communicate()
            expect(page, "#status", "disconnected, trying again")
            shot(page, "disconnected")
            runs.train(path, 2)
            server, _ = serve(port)
            expect(page, "#status", "live")
            expect(page, "#figures", "round2 of 10")
    finally:
        server.kill()
        server.communicate()


def test_a_token_lets_the_page_in_and_is_kept_out_of_the_address(
    visit: Visit, tmp_path: Path
) -> None:
    path = runs.whole_run(tmp_path / "events.jsonl")
    with serving(open_feed(path), token="sesame") as url, visit(url) as page:
        expect(page, "#status", "ended, complete")
        assert page.url == url.split("?")[0]
