"""The page's server: what it serves, to whom, and what it tells viewers as things change."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hubless.errors import HublessError
from hubless.watch.feed import open_feed
from hubless.watch.live.web import serve, serving
from tests.watch import runs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    runs.train(path, 1)
    return path


def ask(url: str, path: str, headers: dict[str, str]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port or 80, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection


@dataclass
class Answer:
    status: int
    headers: Message
    body: str


def get(url: str, path: str = "/", **headers: str) -> Answer:
    with closing(ask(url, path, headers)) as connection:
        response = connection.getresponse()
        # a stream has no end
        body = "" if path.startswith("/events") else response.read().decode()
        answer = Answer(response.status, response.headers, body)
        response.close()
        return answer


class Stream:
    """Server-sent events, one after another."""

    def __init__(self, url: str) -> None:
        self.connection = ask(url, "/events", {})
        self.response = self.connection.getresponse()
        assert self.response.getheader("content-type", "").startswith("text/event-stream")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self.connection.close()

    def next(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = json.loads(value) if name == "data" else value
        return fields


@contextmanager
def process(path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and the address that it printed."""
    code = (
        "import sys; from hubless.watch.feed import open_feed;"
        "from hubless.watch.live.web import serve;"
        f"sys.exit(serve(open_feed(sys.argv[1]), interval=0.05, {', '.join(arguments)}))"
    )
    command = [sys.executable, "-c", code, str(path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        match = re.search(r"http://\S+", server.stdout.readline())
        assert match
        yield server, match[0]
    finally:
        server.kill()
        server.communicate()


def test_the_page_takes_nothing_from_any_other_host(path: Path) -> None:
    with serving(open_feed(path)) as url:
        for name in ("/", "/page.css", "/page.js", "/chart.js", "/strip.js"):
            response = get(url, name)
            assert response.status == 200
            links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", response.body))
            # a namespace is a name and no address
            assert links <= {"http://www.w3.org"}
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"


def test_the_pages_scripts_make_no_markup_of_text() -> None:
    for name in ("page.js", "chart.js", "strip.js"):
        script = (resources.files("hubless.watch.live") / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script
        )


def test_health_and_the_state_are_json(path: Path) -> None:
    with serving(open_feed(path)) as url:
        assert json.loads(get(url, "/health").body) == {"ok": True}
        state = json.loads(get(url, "/state.json").body)
        assert state["name"] == str(path)
        (run,) = state["runs"]
        assert (run["round"], run["rounds"]) == (1, 10)
        assert set(run["lines"]) == {"train_loss", "accuracy"}
        assert len(run["strip"]["rows"]) == 5
        assert get(url, "/no-such-page").status == 404


def test_a_viewer_gets_the_whole_state_and_then_what_changed(path: Path) -> None:
    with serving(open_feed(path), interval=0.05) as url, Stream(url) as stream:
        first = stream.next()
        assert first["event"] == "state"
        assert int(first["retry"]) > 0
        whole = first["data"]["set"]
        assert {"top", "0/summary", "0/strip", "0/lines/accuracy"} <= set(whole)
        runs.train(path, 2)
        change = stream.next()
        assert change["event"] == "change"
        assert int(change["id"]) > int(first["id"])
        assert change["data"]["set"]["0/summary"]["round"] == 2
        assert "top" not in change["data"]["set"]
        with Stream(url) as other:
            again = other.next()
        assert again["event"] == "state"
        assert set(again["data"]["set"]) == set(whole)
        assert again["data"]["set"]["0/summary"]["round"] == 2


def test_what_no_page_can_hold_is_not_sent(path: Path) -> None:
    metrics, where = {"loss": 1e306}, {"key": "updates/x", "bytes": 7, "examples": 1000}
    for name in ("site \ud800", "b"):
        runs.say(path, "pushed", client=name, sequence=0, metrics=metrics, **where)
    with serving(open_feed(path)) as url:
        assert get(url, "/state.json").status == 200
        with Stream(url) as stream:
            assert stream.next()["event"] == "state"


def test_nothing_is_sent_while_nothing_changes(path: Path) -> None:
    with serving(open_feed(path), interval=0.02) as url, Stream(url) as stream:
        stream.next()
        stream.connection.sock.settimeout(0.7)
        with pytest.raises(TimeoutError):
            stream.next()


def test_all_viewers_share_one_look(path: Path) -> None:
    class Counting:
        name, polls = "counting", 0
        inner = open_feed(path)

        def poll(self) -> list[dict[str, Any]]:
            self.polls += 1
            return self.inner.poll()

    feed = Counting()
    with serving(feed, interval=30.0) as url, ExitStack() as stack:
        viewers = [stack.enter_context(Stream(url)) for _ in range(10)]
        assert {viewer.next()["event"] for viewer in viewers} == {"state"}
    # one at first, and one for the first who came
    assert feed.polls <= 2


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8642", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8642", 200),
        ("evil.example", 421),
        ("evil.example:8642", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_only_who_asks_for_this_machine_by_name_is_answered(
    path: Path, host: str, status: int
) -> None:
    with serving(open_feed(path)) as url:
        for page in ("/", "/state.json", "/health", "/events"):
            assert get(url, page, Host=host).status == status


def test_with_a_token_nobody_gets_in_without_it(path: Path) -> None:
    with serving(open_feed(path), token="sesame") as url:
        assert url.endswith("/?token=sesame")
        for page in ("/", "/events", "/state.json", "/page.js"):
            assert get(url, page).status == 401
            assert get(url, f"{page}?token=wrong").status == 401
            assert get(url, page, Cookie="hubless=sesame").status == 401
        assert get(url, "/health").status == 200
        assert get(url, "/state.json?token=sesame").status == 200
        assert get(url, "/state.json", Authorization="Bearer sesame").status == 200
        entered = get(url, "/?token=sesame")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert get(url, "/", Cookie=cookie.split(";")[0]).status == 200


def test_a_token_of_any_letters_lets_in(path: Path) -> None:
    with serving(open_feed(path), token="a b&c=ø→") as url:
        address = url.removeprefix(f"http://{urlsplit(url).netloc}")
        assert address == "/?token=a%20b%26c%3D%C3%B8%E2%86%92"
        entered = get(url, address)
        assert entered.status == 303
        assert get(url, "/", Cookie=entered.headers["set-cookie"].split(";")[0]).status == 200
        assert get(url, "/", Cookie="hubless=a").status == 401


def test_listening_elsewhere_takes_a_token_that_is_made_up_if_need_be(path: Path) -> None:
    with process(path, 'host="0.0.0.0"', "port=0") as (_, url):
        token = urlsplit(url).query.removeprefix("token=")
        assert len(token) >= 20
        assert get(url, "/").status == 401
        # another machine asks by whatever name it has for this one
        assert get(url, f"/state.json?token={token}", Host="gpu-box.lan").status == 200


def test_an_empty_token_is_refused(path: Path) -> None:
    with pytest.raises(HublessError, match="empty token"), serving(open_feed(path), token=""):
        pass


def test_a_port_that_is_taken_is_an_error_that_says_so(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HublessError, match=f"cannot listen at 127.0.0.1 port {port}"):
            serve(open_feed(path), port=port)
    with pytest.raises(HublessError, match="0 to 65535"):
        serve(open_feed(path), port=70000)


def test_ctrl_c_ends_the_server_at_once_even_with_viewers(path: Path) -> None:
    with process(path, "port=0") as (server, url), Stream(url) as stream:
        assert stream.next()["event"] == "state"
        server.send_signal(signal.SIGINT)
        _, error = server.communicate(timeout=60)
        assert server.returncode == 0
        assert error == ""


def test_a_feed_that_breaks_is_shown_and_the_server_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fragile:
        name, broken = "fragile", False
        inner = open_feed(path)

        def poll(self) -> list[dict[str, Any]]:
            if self.broken:
                raise RuntimeError("a bug")
            return self.inner.poll()

    feed = Fragile()
    with serving(feed, interval=0.05) as url, Stream(url) as stream:
        assert stream.next()["data"]["set"]["0/summary"]["round"] == 1
        feed.broken = True
        assert stream.next()["data"]["set"]["top"]["unreachable"] == "RuntimeError: a bug"
        feed.broken = False
        assert stream.next()["data"]["set"]["top"]["unreachable"] == ""
