"""Reports: one page that stands alone, says what was found, and runs nothing it was told."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hubless.errors import DataError, HublessError
from hubless.select.activity import Activity
from hubless.study.grid import Grid
from hubless.watch.report.page import write_report
from tests.study.test_grid import AXES, Counted
from tests.watch.reports import federated, made_up, simulated

CHROMIUM = shutil.which("chromium")
ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in = tag
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._in == "h2":
            self.headings.append(data)
        if self._in not in ("script", "style"):
            self.text += data
        self._in = "" if self._in in ("h2",) else self._in


def _read(page: Path) -> Reader:
    return Reader(page.read_text(encoding="utf-8"))


def _charts(page: Path) -> dict[str, Any]:
    document = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert document is not None
    # every text in a chart begins with a space of no width
    charts: dict[str, Any] = json.loads(document[1].replace("\\u200b", ""))["charts"]
    return charts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two simulations and two federations, run once."""
    folder = tmp_path_factory.mktemp("runs")
    simulated(folder / "uniform.jsonl")
    simulated(folder / "heavy.jsonl", "heavy first", selector=Activity("n"), seed=4)
    federated(folder / "async", "async")
    federated(folder / "sync", "sync")
    return folder


def test_a_run_has_every_section_there_is_something_for(runs: Path, tmp_path: Path) -> None:
    page = write_report([runs / "uniform.jsonl"], tmp_path / "report.html")
    read = _read(page)
    assert read.headings == [
        "Metrics",
        "By decile of clients",
        "Who trained",
        "Labels",
        "Where the time went",
        "Troubles",
        "Settings",
    ]
    assert "After 6 rounds accuracy is" in read.text
    assert "from the same folder and data:python " in read.text and "FedAvg" in read.text
    charts = _charts(page)
    assert set(charts["accuracy"]["specs"]) == {"rounds", "time", "bytes"}
    assert [row["round"] for row in charts["accuracy"]["rows"]] == [2, 4, 6]


def test_the_summary_says_what_the_history_says(tmp_path: Path) -> None:
    ran = simulated(tmp_path / "a.jsonl")
    read = _read(write_report([tmp_path / "a.jsonl"], tmp_path / "r.html", pictures=False))
    last = ran.history["accuracy"].to_list()[-1]
    assert f"accuracy is {last:.4g}" in read.text


def test_pictures_lie_beside_the_page_unless_told_not_to(runs: Path, tmp_path: Path) -> None:
    source = runs / "uniform.jsonl"
    page = write_report([source], tmp_path / "report.html")
    pictures = sorted(path.name for path in (tmp_path / "report").iterdir())
    expected = ["accuracy-by-bytes.png", "accuracy-by-rounds.png", "accuracy-by-time.png"]
    assert pictures[:3] == expected and {"loss-by-rounds.png", "selection.png"} <= set(pictures)
    for path in (tmp_path / "report").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert page == tmp_path / "report.html"
    write_report([source], tmp_path / "bare" / "report.html", pictures=False)
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["report.html"]


def test_a_page_needs_nothing_from_anywhere(runs: Path, tmp_path: Path) -> None:
    page = write_report([runs / "uniform.jsonl"], tmp_path, pictures=False)
    assert page.name == "report.html"
    read = _read(page)
    assert read.links == []
    assert "link" not in read.tags and "iframe" not in read.tags
    assert "default-src 'none'" in page.read_text(encoding="utf-8")


def test_runs_are_compared_and_their_settings_told_apart(runs: Path, tmp_path: Path) -> None:
    sources = [runs / "uniform.jsonl", runs / "heavy.jsonl"]
    page = write_report(sources, tmp_path / "r.html", pictures=False)
    read = _read(page)
    assert re.search(r"ends with the highest accuracy|Both runs end with accuracy", read.text)
    assert "may be chance" in read.text and "What differs" in read.text
    differing = page.read_text(encoding="utf-8").partition("What differs")[2].partition("</table>")
    assert "Activity(&#x27;n&#x27;" in differing[0] and "<th>seed</th>" in differing[0]
    assert "<th>strategy</th>" not in differing[0] and "<th>strategy</th>" in differing[2]
    assert {row["who"] for row in _charts(page)["loss"]["rows"]} == {"uniform", "heavy first"}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_federation_has_its_members(runs: Path, tmp_path: Path, mode: str) -> None:
    page = write_report([runs / mode], tmp_path / "r.html", pictures=False)
    read = _read(page)
    assert f"Members of {mode}" in read.headings
    assert ("Staleness" in read.headings) == (mode == "async")
    assert "Settings" not in read.headings
    lines = {"all members", "antwerp", "bergen", "cadiz"}
    assert {row["who"] for row in _charts(page)["loss"]["rows"]} == lines
    # weighted by their 10, 20 and 30 examples
    assert "After 4 rounds loss is 1.583" in read.text


def test_a_federation_is_reported_from_its_folder_alone(runs: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(runs / "async", tmp_path / "bare")
    for path in bare.glob("*.jsonl"):
        path.unlink()
    page = write_report([bare.as_uri()], tmp_path / "r.html", pictures=False)
    read = _read(page)
    assert "Members of bare" in read.headings and "antwerp" in read.text
    rows = _charts(page)["loss"]["rows"]
    assert {row["value"] for row in rows if row["who"] == "bergen"} == {2.0, 1.5, 1.3333, 1.25}


def test_a_folder_of_runs_and_federations_go_into_one_report(runs: Path, tmp_path: Path) -> None:
    page = write_report([runs, runs / "async", runs / "sync"], tmp_path / "r.html", pictures=False)
    text = _read(page).text
    for name in ("uniform", "heavy first", "async", "sync"):
        assert name in text


def test_a_run_without_evaluation_says_so(tmp_path: Path) -> None:
    simulated(tmp_path / "a.jsonl", test=None, rounds=3)
    read = _read(write_report([tmp_path / "a.jsonl"], tmp_path / "r.html", pictures=False))
    assert "Nothing was evaluated on a test" in read.text
    assert "train_loss is" in read.text
    assert "By decile of clients" not in read.headings


def test_a_run_that_was_killed_says_so(runs: Path, tmp_path: Path) -> None:
    lines = (runs / "uniform.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:50])
    read = _read(write_report([tmp_path / "a.jsonl"], tmp_path / "r.html", pictures=False))
    assert "3 of 6 rounds are told of" in read.text


def test_a_study_shows_its_results_and_figures(tmp_path: Path) -> None:
    grid = Grid(AXES, tmp_path / "study")
    grid.complete(Counted(tmp_path / "log"))
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
    (grid.out / "figure-1a.svg").write_text(svg)
    page = write_report([grid.out], tmp_path / "r.html")
    read = _read(page)
    assert read.headings == ["Study: study"]
    assert "12 rows of results" in read.text and "activity:n" in read.text
    assert [link[:26] for link in read.links] == ["data:image/svg+xml;base64,"]


def _hostile(path: Path) -> Path:
    """A run and a member that call everything by a name that would like to be code."""
    records: list[dict[str, Any]] = [
        {"event": "started", "round": 0, "settings": {ATTACK: ATTACK, "command": ATTACK}},
        {"event": "trained", "round": 1, "cohort": [1], "metrics": {ATTACK: 1.0, "loss": 2.0}},
        {"event": "trained", "round": 2, "cohort": [1], "metrics": {ATTACK: 3.0, "loss": 1.0}},
        {"event": "ended", "round": 2, "reason": ATTACK},
        {"event": "pushed", "sequence": 0, "metrics": {"loss": 0.5, "x'\"`${1}": 3}, "bytes": 9},
        {"event": "refused", "peer": ATTACK, "key": ATTACK, "reason": ATTACK + "\u2028\ud800"},
        {"event": ATTACK},
    ]
    records[1]["phases"] = {ATTACK: 1.0}
    records[1]["deciles"] = {ATTACK: [1.0] * 10}
    records[0]["settings"]["labels"] = {"names": [ATTACK], "by_decile": [[3]] * 10}
    lines = [json.dumps({**r, "client": ATTACK, "time": 1.0 + n}) for n, r in enumerate(records)]
    lines.insert(3, '{"event": "trained", "client": "nan", "round": 1, "metrics": {"loss": NaN}}')
    path.write_text("\n".join([*lines, '{"event": "trained", "rou']))
    return path


def test_nothing_that_a_run_says_becomes_code(tmp_path: Path) -> None:
    page = write_report([_hostile(tmp_path / "a.jsonl")], tmp_path / "r.html")
    text = page.read_text(encoding="utf-8")
    assert ATTACK not in text and html.escape(ATTACK) in text
    read = _read(page)
    assert read.tags.count("script") == 2 and "img" not in read.tags
    assert not [path for path in (tmp_path / "r").iterdir() if not path.name.endswith(".png")]


def test_metrics_of_any_name_are_drawn(tmp_path: Path) -> None:
    names = ["*", "^r.*$", "two\nlines", "a.b[0]'\"\\", "\u2028", "\ud800", "", "round"]
    names += ["constructor", "toString", "__proto__", "hasOwnProperty", "valueOf"]
    path = tmp_path / "a.jsonl"
    for number in (1, 2):
        metrics = {name: number / (at + 1) for at, name in enumerate(names)}
        deciles = {name: [value] * 10 for name, value in metrics.items()}
        record = {
            "event": "trained",
            "client": "constructor",
            "round": number,
            "time": 1.0 + number,
        }
        record["phases"] = dict.fromkeys(names, 1.0)
        with path.open("a") as file:
            file.write(json.dumps({**record, "metrics": metrics, "deciles": deciles}) + "\n")
    page = write_report([path], tmp_path / "r.html")
    drawn = [c for c in _charts(page).values() if "line" in c["rows"][0]]
    assert sorted(chart["rows"][0]["value"] for chart in drawn) == pytest.approx(
        sorted(1 / (at + 1) for at in range(len(names))), rel=1e-4
    )
    text = _read(page).text
    assert "* (metric)" in text and "two lines" in text and "a.b[0]'\"\\" in text


def test_a_page_without_a_suffix_has_its_pictures_elsewhere(runs: Path, tmp_path: Path) -> None:
    page = write_report([runs / "uniform.jsonl"], tmp_path / "first")
    assert page.is_file() and list((tmp_path / "first-pictures").glob("*.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "first-pictures"]


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(
    runs: Path, tmp_path: Path
) -> None:
    with pytest.raises(HublessError, match="cannot write the report to /proc/x/y.html"):
        write_report([runs / "uniform.jsonl"], "/proc/x/y.html")
    (tmp_path / "r").touch()
    with pytest.raises(HublessError, match="cannot write the report"):
        write_report([runs / "uniform.jsonl"], tmp_path / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_two_hundred_clients_and_five_hundred_rounds_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(made_up(200, 500, 50)))
    # seconds of this process: other tests may want the same cores
    started = time.process_time()
    page = write_report([tmp_path / "a.jsonl"], tmp_path / "r.html", pictures=False)
    assert time.process_time() - started < 20
    assert page.stat().st_size < 3e6


@pytest.mark.parametrize("source", ["nowhere.jsonl", "nothing"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(HublessError, match=source):
        write_report([tmp_path / source], tmp_path / "r.html")


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to report"):
        write_report([], tmp_path / "r.html")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.parametrize("kind", ["compared", "hostile", "federation"])
def test_a_browser_draws_every_chart_and_complains_of_nothing(
    runs: Path, tmp_path: Path, kind: str
) -> None:
    sources = {
        "compared": [runs / "uniform.jsonl", runs / "heavy.jsonl"],
        "hostile": [_hostile(tmp_path / "a.jsonl")],
        "federation": [runs / "async"],
    }[kind]
    page = write_report(sources, tmp_path / "r.html", pictures=False)
    ran = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
            *("--virtual-time-budget=10000", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    complaints = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    drawn = ran.stdout.count('<svg xmlns="http://www.w3.org/2000/svg"')
    assert drawn == len(_charts(page)) > 3
    assert "<title>owned" not in ran.stdout
