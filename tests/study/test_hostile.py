"""Hostile clients: what they share instead, and the table of who withstands them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hubless import SGD, FedAvg, FedMedian, Local, Population, Recipe, Simulation, Strategy, Task
from hubless.simulate.simulation import EngineChoice
from hubless.study import hostile
from hubless.study.attacks import ATTACKS, Attacked, alie, draw_hostile, ipm
from tests.support.digits import written

ENGINE = Local(lanes=2, compiled=False, processes=1)


def people(clients: int) -> Population:
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(clients), 12)
    x = rng.standard_normal((len(owner), 6), dtype=np.float32)
    return Population.by({"x": x, "y": (x[:, 0] > 0).astype(int)}, owner)


def after_a_round(strategy: Strategy, engine: EngineChoice) -> torch.Tensor:
    torch.manual_seed(0)
    ran = Simulation(
        Task(nn.Linear(6, 2)),
        people(10),
        recipe=Recipe(SGD(0.5), epochs=3),
        strategy=strategy,
        cohort=10,
        engine=engine,
    )
    start = ran.flat.clone()
    with ran:
        ran.run(rounds=1)
    return ran.flat - start


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_moves_the_mean_and_a_median_hardly(name: str) -> None:
    attacked = Attacked(ENGINE, draw_hostile(10, 0.2, seed=1), ATTACKS[name])
    honest = after_a_round(FedAvg(), ENGINE)
    moved = (after_a_round(FedAvg(), attacked) - honest).norm()
    withstood = (after_a_round(FedMedian(), attacked) - after_a_round(FedMedian(), ENGINE)).norm()
    assert moved > 0
    assert withstood < moved or name == "ALIE"


def test_nobody_hostile_is_no_attack() -> None:
    honest = after_a_round(FedAvg(), ENGINE)
    assert torch.allclose(after_a_round(FedAvg(), Attacked(ENGINE, (), ipm)), honest, atol=1e-6)


def test_attacks_are_what_their_papers_say() -> None:
    random = torch.Generator().manual_seed(0)
    honest = torch.randn(16, 50, generator=random) + 1.0
    own = honest[:4]
    everybody = torch.cat([honest, ipm(honest, own, random)])
    assert (everybody.mean(0) * honest.mean(0) < 0).all(), "all of them together go back"
    away = (alie(honest, own, random) - honest.mean(0)).abs() / honest.std(0)
    assert torch.allclose(away, torch.full_like(away, 0.1573), atol=1e-3)


def test_wrong_labels_are_those_of_the_hostile_alone() -> None:
    whole = people(3)
    wrong = hostile.mislabelled(whole, [1])
    rows = np.arange(36) if whole.rows is None else np.asarray(whole.rows)
    assert (wrong.columns["y"][rows[12:24]] == 9 - whole.columns["y"][rows[12:24]]).all()
    others = np.r_[rows[:12], rows[24:]]
    assert (wrong.columns["y"][others] == whole.columns["y"][others]).all()


def test_what_is_finished_is_never_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = written(tmp_path / "data", 1200), tmp_path / "out"
    out.mkdir()
    every = [
        {"strategy": s, "attack": a, "seed": 0, "accuracy": 0.5, "seconds": 1.0}
        for s in hostile.STRATEGIES
        for a in hostile.AGAINST
    ]
    kept = [r for r in every if (r["strategy"], r["attack"]) != ("norm bound", "IPM")]
    (out / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept))
    asked = ["--data", data, "--out", str(out), "--rounds", "2", "--seeds", "1"]
    assert hostile.main([*asked, "--table"]) == 3
    assert hostile.main([*asked, "--workers", "1"]) == 0
    told = capsys.readouterr()
    assert "1 of 1: norm bound/IPM/0" in told.err
    assert "| FedAvg | 50.0% |" in (out / "table.md").read_text()
    with pytest.raises(SystemExit):
        hostile.main([*asked, "--rounds", "3"])
    assert "rounds" in capsys.readouterr().err
