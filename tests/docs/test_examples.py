"""The examples: each runs as it is, without data or arguments, and finds what it says it finds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hubless.store.base import Store
from hubless.strategy.base import Strategy
from hubless.testing import StoreContract, StrategyContract

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def _run(name: str, tmp_path: Path) -> str:
    """What an example prints; it has to end well and say nothing on stderr."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HUBLESS_CACHE": str(tmp_path / "cache")},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stderr == ""
    return ran.stdout


def _shares(printed: str) -> list[float]:
    """All percentages, as printed."""
    return [float(share) for share in re.findall(r"(\d+\.\d)%", printed)]


def _load(name: str) -> ModuleType:
    """An example as a module, without running what it runs by itself."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_and_short() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert set(EXAMPLES) <= tested
    for name in EXAMPLES:
        assert 30 <= len((FOLDER / f"{name}.py").read_text().splitlines()) <= 85, name


def test_simulate_logistic(tmp_path: Path) -> None:
    uniform, by_n, by_inverse_log, active = _shares(_run("simulate_logistic", tmp_path))
    assert by_n < uniform < min(by_inverse_log, active)


def test_own_strategy(tmp_path: Path) -> None:
    average, cautious = _shares(_run("own_strategy", tmp_path))
    assert average < 50 < 90 < cautious


def test_own_selector(tmp_path: Path) -> None:
    printed = _run("own_selector", tmp_path)
    uniform, alike = map(float, re.findall(r"after (\d+) s", printed))
    assert alike < 0.8 * uniform
    assert min(_shares(printed)) > 90


def test_two_sites(tmp_path: Path) -> None:
    printed = _run("two_sites", tmp_path)
    found = re.findall(r"(\w+): mean error ([\d.]+) alone, ([\d.]+) together", printed)
    assert [name for name, _, _ in found] == ["north", "south"]
    # nobody waits, so how much either takes from the other differs from run to run
    assert sum(float(together) for *_, together in found) < sum(float(a) for _, a, _ in found)


def test_sync_rounds(tmp_path: Path) -> None:
    *rounds, last = _run("sync_rounds", tmp_path).splitlines()
    assert [line.split(" after")[0] for line in rounds] == [
        "round 1: ann, bob, cyd",
        "round 2: ann, bob, cyd",
        "round 3: ann, bob",
        "round 4: ann, bob",
    ]
    assert last.endswith("the same bytes")


def test_sklearn_sites(tmp_path: Path) -> None:
    alone, together = _shares(_run("sklearn_sites", tmp_path))
    assert alone <= 20.5 and together > 75


def test_stragglers(tmp_path: Path) -> None:
    printed = _run("stragglers", tmp_path)
    waiting, deadline, buffered = map(float, re.findall(r"after +(\d+) s", printed))
    assert waiting > deadline > buffered > 0
    assert min(_shares(printed)) >= 93


def test_private_valuations(tmp_path: Path) -> None:
    printed = _run("private_valuations", tmp_path)
    uniform, openly, *_ = _shares(printed)
    assert openly > uniform
    spent, bounded = map(float, re.findall(r"epsilon (\d+\.\d)", printed))
    assert spent > 10 >= bounded > 0
    assert int(re.findall(r"(\d+) reports withheld", printed)[0]) > 0


def test_continual_fleet(tmp_path: Path) -> None:
    found = _shares(_run("continual_fleet", tmp_path))
    assert len(found) == 6
    # one of some twenty intents by chance would be far below
    assert min(found[0], found[3]) > 50


def test_resume(tmp_path: Path) -> None:
    printed = _run("resume", tmp_path)
    assert "killed: yes" in printed and "the same bits" in printed


def test_own_store(tmp_path: Path) -> None:
    printed = _run("own_store", tmp_path)
    assert "bob holds [0.5, 0.5, 0.5]" in printed
    assert printed.count("updates/") == 4


class TestTheStoreOfTheExample(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        self.path = tmp_path / "store.db"
        store: Store = _load("own_store").SqliteStore(self.path)
        return store

    def reopened(self, store: Store) -> Store:
        opened: Store = type(store)(self.path)  # type: ignore[call-arg]
        return opened


class TestTheStrategyOfTheExample(StrategyContract):
    @pytest.fixture
    def strategy(self) -> Strategy:
        strategy: Strategy = _load("own_strategy").Cautious()
        return strategy
