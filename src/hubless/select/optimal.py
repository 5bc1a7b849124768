"""Optimal client sampling: the larger a client's update, the likelier it is asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hubless.checks import number
from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage
from hubless.select.sampling import Exact, Part, Table


@dataclass(frozen=True)
class OptimalSampling:
    """The larger a client's update, the likelier it is asked for the next one.

        p_i = min(1, c · n_i · max(u_i, least · mean(u)))        with the c at which Σ p_i = k

    u_i is the norm of client i's last update, its valuation, and n_i its number of examples. Each
    update is weighed by 1 / p_i: this selector is always unbiased, and with these p_i the variance
    of the sum is as small as it can be. A client without a valuation counts as the mean of those
    who have one.

    The paper asks all clients for the norm of their current update, and lets chance decide for each
    alone. Here norms are from when a client last trained, and exactly k are picked.

    Args:
        least: The share of the mean norm that everybody counts as at the least, in [0, 1]. With 0 a
            client whose norm was 0 once is never asked again.

    >>> roster = Roster([1, 1, 1, 1])
    >>> roster.record_seen(np.arange(3), [6.0, 1.0, 2.0])
    >>> OptimalSampling().inclusion(roster, 2)
    array([1.        , 0.16666667, 0.33333333, 0.5       ])

    Reference:
        Chen, Horváth and Richtárik, "Optimal Client Sampling for Federated Learning", 2022.
    """

    looks_at: ClassVar[str] = "update norms"
    unbiased: ClassVar[bool] = True

    least: float = 0.0

    def __post_init__(self) -> None:
        number("least", self.least, least=0, most=1, error=SelectionError)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        picked = self._exact(roster, k).draw(k, rng)
        refuse_shortage(roster, k, picked)
        return picked

    def inclusion(self, roster: Roster, k: int, clients: Ints | None = None) -> Floats:
        """How likely clients are to be among `k`.

        Args:
            roster: Who there is.
            k: How many are picked.
            clients: Whose probabilities to give; everybody's if not given.
        """
        exact = self._exact(roster, k)
        if exact.table.positive < k:
            refuse_shortage(roster, k, exact.draw(k, np.random.default_rng()))
        return exact.inclusion(k, clients)

    def _exact(self, roster: Roster, k: int) -> Exact:
        refuse_shortage(roster, k)
        columns = ("examples", "valuation")
        exact = roster.derive(self, columns, lambda: Exact(self._table(roster)))
        if roster.available is None:
            return exact
        return Exact(exact.table.among(roster.available))

    def _table(self, roster: Roster) -> Table:
        valuations = roster.valuation[~np.isnan(roster.valuation)]
        mean = float(np.maximum(valuations, 0.0).mean()) if len(valuations) else 1.0

        def weigh(part: Part) -> Floats:
            # noise for the sake of privacy may have made a norm negative
            norms = np.maximum(roster.valuation[part], self.least * mean)
            return np.where(np.isnan(norms), mean, norms) * roster.examples[part]

        return Table.by(weigh, len(roster))
