"""What hostile clients of a simulation share instead of what they have trained.

An attack is given the changes of all honest clients and those that the hostile ones have trained
themselves, one row per client, and says what the hostile ones share. The worst are assumed to know
what everybody else does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from hubless.simulate.job import Cohort, Engine, Ints, Job, Learned
from hubless.simulate.simulation import EngineChoice

Attack: TypeAlias = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def sign_flip(honest: Tensor, own: Tensor, random: torch.Generator) -> Tensor:
    """Five times the way back from what was trained."""
    return own * -5.0


def noise(honest: Tensor, own: Tensor, random: torch.Generator) -> Tensor:
    """A random direction, ten times as far as honest clients usually go."""
    drawn = torch.randn(own.shape, generator=random).to(own)
    far: Tensor = 10.0 * honest.norm(dim=1).median() / drawn.norm(dim=1, keepdim=True)
    return drawn * far


def alie(honest: Tensor, own: Tensor, random: torch.Generator) -> Tensor:
    """Just within the spread of the honest: Baruch et al., "A Little Is Enough" (2019)."""
    everybody, hostile = len(honest) + len(own), len(own)
    supporters = everybody // 2 + 1 - hostile
    share = (everybody - hostile - supporters) / (everybody - hostile)
    away = NormalDist().inv_cdf(min(max(share, 1e-3), 1 - 1e-3))
    shared: Tensor = honest.mean(0) - away * honest.std(0)
    return shared.expand_as(own)


def ipm(honest: Tensor, own: Tensor, random: torch.Generator) -> Tensor:
    """So far against the honest mean that all of them together go back: Xie et al. (2020)."""
    back = 1.5 * len(honest) / len(own)
    return (-back * honest.mean(0)).expand_as(own)


ATTACKS: dict[str, Attack] = {"sign flip": sign_flip, "noise": noise, "ALIE": alie, "IPM": ipm}


@dataclass(frozen=True)
class Attacked:
    """An engine some of whose clients are hostile."""

    engine: EngineChoice
    hostile: tuple[int, ...]
    attack: Attack

    def start(self, job: Job, cohort: int, rounds: int) -> Engine:
        """The engine, with an attacker behind it."""
        return _Attacked(self.engine.start(job, cohort, rounds), job, self.hostile, self.attack)


class _Attacked:
    def __init__(self, engine: Engine, job: Job, hostile: tuple[int, ...], attack: Attack) -> None:
        self._engine, self._job = engine, job
        self._hostile, self._attack = np.array(hostile), attack

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train all of them, and put in what the hostile ones share."""
        learned = self._engine.run(params, cohort, each=True)
        everybody = cast(Tensor, learned.each).clone()
        hostile = torch.from_numpy(np.isin(cohort.clients, self._hostile))
        if hostile.any() and not hostile.all():
            changes = everybody - params
            random = torch.Generator().manual_seed(cohort.key(self._job.seed, "attack"))
            shared = self._attack(changes[~hostile], changes[hostile], random)
            everybody[hostile] = params + shared.to(params)
        if each:
            return replace(learned, each=everybody)
        weights = torch.from_numpy(cohort.weights).to(everybody)
        return replace(learned, total=weights @ everybody, each=None)

    def close(self) -> None:
        self._engine.close()

    @property
    def device(self) -> torch.device:
        return self._engine.device

    def describe(self) -> Mapping[str, Any]:
        return self._engine.describe()


def draw_hostile(clients: int, share: float, seed: int) -> tuple[int, ...]:
    """Which of so many clients are hostile, drawn from the seed."""
    count = math.floor(clients * share)
    chosen: Ints = np.random.default_rng([seed, 77]).choice(clients, count, replace=False)
    return tuple(sorted(int(client) for client in chosen))
