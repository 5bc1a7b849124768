"""Wrong command lines: each is one paragraph on stderr and a code, before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hubless.cli import main

STUDY = """
[data]
clients = 30
months = 4
[grid]
algorithms = ["fedavg"]
selectors = ["uniform"]
horizons = ["2"]
sets = 1
[train]
rounds = 2
cohort = 4
"""


def study(section: str, setting: str) -> str:
    """A study with a setting of a section changed, or one more."""
    name = setting.partition(" ")[0]
    kept = [line for line in STUDY.splitlines() if not line.startswith(f"{name} ")]
    return "\n".join(kept).replace(f"[{section}]", f"[{section}]\n{setting}")


# what is in the files of the folder, besides one that is a folder
FILES = {
    "study.toml": STUDY,
    "script.py": "print('it was run')\n",
    "text.txt": "this is no script\n",
    "broken.toml": "[data\nclients = 3\n",
    "bytes.toml": "\udcff\udcfe",
    "empty.jsonl": "",
    "some.jsonl": '{"event": "left", "client": "a", "time": 1.0, "steps": 3}\n',
    "section.toml": STUDY + "[gird]\nsets = 2\n",
    "top.toml": "clients = 30\n" + STUDY,
    "title.toml": "title = 3\n" + STUDY,
    "key.toml": study("train", "cohrot = 10"),
    "clients.toml": study("data", "clients = -5"),
    "clients_text.toml": study("data", 'clients = "many"'),
    "months.toml": study("data", "months = 0"),
    "months_flag.toml": study("data", "months = true"),
    "utterances.toml": study("data", "utterances = nan"),
    "window.toml": study("data", 'window = "2015"'),
    "window_words.toml": study("data", 'window = ["soon", "later"]'),
    "source.toml": study("data", 'source = "flete"'),
    "source_list.toml": study("data", 'source = ["fleet"]'),
    "gitlog.toml": study("data", 'source = "gitlog"'),
    "file.toml": study("data", "file = 3"),
    "length.toml": study("data", "length = 0"),
    "vocabulary.toml": study("data", "vocabulary = 1"),
    "algorithm.toml": study("grid", 'algorithms = ["fedavgg"]'),
    "algorithm_text.toml": study("grid", 'algorithms = "fedavg"'),
    "algorithm_none.toml": study("grid", "algorithms = []"),
    "algorithm_twice.toml": study("grid", 'algorithms = ["fedavg", "fedavg"]'),
    "selector.toml": study("grid", 'selectors = ["unifrom"]'),
    "selector_text.toml": study("grid", 'selectors = "uniform"'),
    "selector_setting.toml": study("grid", 'selectors = ["heavy:2"]'),
    "selector_file.toml": study("grid", 'selectors = ["mine.py:fewest"]'),
    "horizon.toml": study("grid", 'horizons = ["soon"]'),
    "horizon_zero.toml": study("grid", 'horizons = ["0"]'),
    "horizon_number.toml": study("grid", "horizons = 3"),
    "sets.toml": study("grid", "sets = 0"),
    "share.toml": study("grid", "share = 1.5"),
    "model.toml": study("train", 'model = "tinny"'),
    "model_number.toml": study("train", "model = 3"),
    "model_size.toml": study("train", "model = { width = 8 }"),
    "model_text.toml": study("train", 'model = { width = "8", layers = 1, heads = 1 }'),
    "cohort.toml": study("train", "cohort = 0"),
    "cohort_share.toml": study("train", "cohort = 0.1"),
    "rounds.toml": study("train", "rounds = 0"),
    "batch.toml": study("train", "batch = -1"),
    "precision.toml": study("train", 'precision = "float16"'),
    "carry.toml": study("train", 'carry = "yes"'),
    "seed.toml": study("train", "seed = -1"),
    "save_every.toml": study("train", "save_every = 0"),
    "rates.toml": study("train", "rates = 0.1"),
    "rates_text.toml": study("train", 'rates = { fedavg = { client = "0.1" } }'),
    "rates_zero.toml": study("train", "rates = { fedavg = { client = 0 } }"),
    "rates_number.toml": study("train", "rates = { fedavg = 0.1 }"),
    "rates_other.toml": study("train", "rates = { fedavg = { client = 0.1, server = 0.1 } }"),
    "tried.toml": STUDY + "[tune]\ntried = { clients = [0.1] }\n",
    "tried_number.toml": STUDY + "[tune]\ntried = { client = 0.1 }\n",
    "tried_text.toml": STUDY + '[tune]\ntried = { client = ["a"] }\n',
    "tuned_on.toml": STUDY + '[tune]\ntuned_on = "now"\n',
}

# the words of each command line, and what is said of it
CALLS: dict[str, tuple[str, str]] = {
    "nothing": ("", "COMMAND"),
    "unknown command": ("rn script.py", "'run'"),
    "unknown option": ("env --ful", "--ful"),
    "env word": ("env full", "full"),
    "new kind": ("new --kind simulation", "simulat"),
    "new over a file": ("new script.py", "script.py is there"),
    "new in no folder": ("new nowhere/a.py", "nowhere/a.py"),
    "new a folder": ("new folder --force", "folder"),
    "new two": ("new a.py b.py", "b.py"),
    "new empty": ("new ", "folder"),
    "run nothing": ("run", "FILE"),
    "run a missing file": ("run scrpt.py", "'script.py'"),
    "run a folder": ("run folder", "folder"),
    "run to a file": ("run --out text.txt script.py", "text.txt"),
    "run below a file": ("run --out text.txt/below script.py", "text.txt"),
    "run without a folder": ("run --out", "--out"),
    "study to a file": ("run --out text.txt study.toml", "text.txt"),
    "study option": ("run study.toml --wrokers 3", "--wrokers"),
    "study workers": ("run study.toml --workers 0", "--workers"),
    "study workers text": ("run study.toml --workers many", "many"),
    "study lanes": ("run study.toml --lanes -1", "lanes="),
    "study minutes": ("run study.toml --minutes soon", "soon"),
    "study minutes nan": ("run study.toml --minutes nan", "--minutes"),
    "study device": ("run study.toml --device gpu", "device="),
    "ls nothing": ("ls", "url"),
    "ls a missing folder": ("ls nowhere", "nowhere"),
    "ls a file": ("ls text.txt", "text.txt"),
    "ls no federation": ("ls folder", "folder"),
    "ls two": ("ls folder folder", "folder"),
    "ls no bucket": ("ls s3://", "s3://bucket/folder"),
    "ls no bucket of Google": ("ls gs:///run", "gs://bucket/folder"),
    "ls unknown": ("ls ftp://host/run", "ftp://"),
    "ls a query": ("ls s3://bucket/run?a=1", "?"),
    "ls empty": ("ls ", "address"),
    "ls machine": ("ls file://host/run", "file://host"),
    "ls option": ("ls folder --option region", "--option"),
    "ls endpoint": ("ls folder --endpoint http://localhost:9", "--endpoint"),
    "ls option of a folder": ("ls folder --option a=b", "--option"),
    "ls option unknown": ("ls s3://bucket/run --option no_such=1", "no_such"),
    "check size": ("check folder --size 0", "--size"),
    "check size negative": ("check folder --size -3", "--size"),
    "check size text": ("check folder --size much", "much"),
    "check a missing folder": ("check nowhere", "nowhere"),
    "check a file": ("check text.txt", "text.txt"),
    "check a name": ("check folder --client a/b", "a/b"),
    "check no name": ("check folder --client ", "client"),
    "check no bucket": ("check az://", "az://bucket/folder"),
    "pull nothing": ("pull folder", "folder"),
    "pull a missing folder": ("pull nowhere", "nowhere"),
    "pull no bucket": ("pull s3:///run -o model", "s3://bucket/folder"),
    "pull to a folder": ("pull folder -o folder", "folder"),
    "pull below a file": ("pull folder -o text.txt/model", "text.txt"),
    "pull in no folder": ("pull folder -o nowhere/model", "nowhere"),
    "policy nothing": ("policy s3://bucket/run", "--member"),
    "policy of a folder": ("policy folder --member a", "folder"),
    "policy no bucket": ("policy s3:// --member a", "s3://"),
    "policy a star": ("policy s3://bucket/* --member a", "s3://bucket/*"),
    "policy twice": ("policy s3://bucket/run --member a --member a", "twice"),
    "policy a name": ("policy s3://bucket/run --member a/b", "a/b"),
    "policy no name": ("policy s3://bucket/run --member =x", "client"),
    "policy no account": ("policy gs://bucket/run --member a", "ACCOUNT"),
    "watch nothing": ("watch", "SOURCE"),
    "watch a missing folder": ("watch nowhere --once", "nowhere"),
    "watch an empty folder": ("watch folder --once", "folder"),
    "watch no bucket": ("watch s3:// --once", "s3://bucket/folder"),
    "watch an unknown place": ("watch ftp://host/run", "ftp://"),
    "watch interval": ("watch folder --interval 0", "--interval"),
    "watch interval text": ("watch folder --interval often", "often"),
    "watch port alone": ("watch folder --port 8642", "--web"),
    "watch port": ("watch empty.jsonl --web --port 99999", "--port"),
    "watch port negative": ("watch empty.jsonl --web --port -1", "--port"),
    "watch port text": ("watch empty.jsonl --web --port http", "http"),
    "watch host": ("watch empty.jsonl --web --host no.such.host.invalid --port 0", "invalid"),
    "watch once and web": ("watch empty.jsonl --web --once", "--once"),
    "watch json": ("watch empty.jsonl --json", "--json"),
    "report nothing": ("report", "SOURCE"),
    "report a missing folder": ("report nowhere", "nowhere"),
    "report an empty folder": ("report folder", "folder"),
    "report an empty file": ("report empty.jsonl", "empty.jsonl"),
    "report no events": ("report text.txt", "text.txt"),
    "report no bucket": ("report gs://", "gs://bucket/folder"),
    "report below a file": ("report some.jsonl -o text.txt/page.html", "text.txt"),
    "demo option": ("demo --clinets 3", "--clinets"),
    "demo clients": ("demo --folder out --clients 0", "--clients"),
    "demo clients text": ("demo --folder out --clients few", "few"),
    "demo rounds": ("demo --folder out --rounds -1", "--rounds"),
    "demo epochs": ("demo --folder out --epochs 0", "--epochs"),
    "demo only": ("demo --folder out --only site", "site"),
    "demo folder": ("demo --folder text.txt --only sites", "text.txt"),
    # what depends on the data is found out with them
    "study vocabulary": ("run vocabulary.toml", "vocabulary of 1"),
    "study window": ("run window_words.toml", "'soon'"),
    **{f"study {name}": (f"run {name}", name) for name in FILES if name.endswith(".toml")},
}
for name in ("study.toml", "vocabulary.toml", "window_words.toml"):
    del CALLS[f"study {name}"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(os.fsencode(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("wrong", CALLS)
def test_a_wrong_command_line_is_one_paragraph_and_nothing_is_written(
    wrong: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, named = CALLS[wrong]
    before = everything(here)
    try:
        code = main(words.split(" ") if words else [])
    except SystemExit as leaving:
        code = leaving.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert code in (1, 2)
    assert said.out == ""
    assert "Traceback" not in said.err
    paragraph = said.err
    if code == 2:
        usage, _, paragraph = said.err.strip().rpartition("\n")
        assert usage.startswith("usage: ")
        assert ": error: " in paragraph
    assert named in paragraph
    assert 20 < len(paragraph) < 500
    assert "\n" not in paragraph.strip()
    assert everything(here) == before
