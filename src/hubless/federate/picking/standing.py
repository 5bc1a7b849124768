"""What is known of every member, and who was picked by it: what selection adds to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

from hubless.federate.keys import Incarnation

_MOST_EXAMPLES = 10**15


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one member; `hubless.select.roster` says what each of these means.

    Rounds are -1 for never, and `examples` is 0 for a member that was never seen.
    """

    examples: int = 0
    valuation: float | None = None
    valued: int = -1
    selected: int = 0
    last_selected: int = -1
    last_seen: int = -1

    def check(self, number: int) -> None:
        """Raise a ValueError unless this can be known before round `number`."""
        whole = (self.examples, self.valued, self.selected, self.last_selected, self.last_seen)
        if any(type(value) is not int for value in whole):
            raise ValueError("its roster has counts that are no whole numbers")
        if self.valuation is not None and not (
            type(self.valuation) is float and math.isfinite(self.valuation)
        ):
            raise ValueError("its roster has a valuation that is no finite number")
        in_order = -1 <= self.valued <= self.last_seen <= self.last_selected < number
        counted = 0 <= self.examples < _MOST_EXAMPLES and 0 <= self.selected <= number
        picked = (self.last_selected >= 0) == (self.selected > 0)
        valued = (self.valuation is None) == (self.valued == -1)
        if not (in_order and counted and picked and valued):
            raise ValueError(f"its roster says what cannot be: {self}")


_COLUMNS = tuple(field.name for field in fields(Standing))


@dataclass(frozen=True)
class Pick:
    """Who trains in a round, and what was known of all members when they were drawn.

    >>> pick = Pick(("a",), {"a": Standing(), "b": Standing()})
    >>> pick.after(0, {"a": (10, 2.5)})["a"]
    Standing(examples=10, valuation=2.5, valued=0, selected=1, last_selected=0, last_seen=0)
    >>> Pick.parse(pick.to_json(), 0) == pick
    True
    """

    members: tuple[str, ...]
    roster: Mapping[str, Standing]
    passed: Mapping[str, Incarnation] = field(default_factory=dict)
    """Who was drawn before them and had left by then, and which life of theirs was over."""

    def after(
        self, number: int, delivered: Mapping[str, tuple[int, float | None]]
    ) -> dict[str, Standing]:
        """What is known once round `number` is over, given what its updates' keys say."""
        standings = dict(self.roster)
        for name in self.members:
            before = standings[name]
            standings[name] = replace(before, selected=before.selected + 1, last_selected=number)
        for name, (examples, valuation) in delivered.items():
            standings[name] = replace(standings[name], examples=examples, last_seen=number)
            if valuation is not None:
                standings[name] = replace(standings[name], valuation=valuation, valued=number)
        return standings

    def to_json(self) -> dict[str, Any]:
        """As a plan says it: the roster in columns."""
        rows = [astuple(standing) for standing in self.roster.values()]
        columns = {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)}
        return {
            "picked": list(self.members),
            "passed": {name: str(life) for name, life in self.passed.items()},
            "roster": {"members": list(self.roster), **columns},
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any], number: int) -> Pick:
        """What the plan of round `number` says of it; ValueError if it cannot be."""
        picked, roster = document["picked"], document["roster"]
        names, columns = roster["members"], [roster[name] for name in _COLUMNS]
        if any(type(values) is not list for values in (picked, names, *columns)):
            raise ValueError("its roster is not made of columns")
        if any(type(name) is not str for name in (*picked, *names)):
            raise ValueError("its roster has members without a name")
        standings = [Standing(*row) for row in zip(*columns, strict=True)]
        for standing in standings:
            standing.check(number)
        passed = {name: Incarnation.parse(life) for name, life in document["passed"].items()}
        pick = cls(tuple(picked), dict(zip(names, standings, strict=True)), passed)
        if len(pick.roster) != len(names) or not {*picked, *passed} <= set(names):
            raise ValueError("it picks who is not in its roster")
        return pick
