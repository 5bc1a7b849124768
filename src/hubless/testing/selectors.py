"""What every selector has to keep, as tests: subclass with a `make` fixture and run pytest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.roster import Roster, Selector, there

Make = Callable[[int], Selector]


class SelectorContract:
    """Subclass, and give it a pytest fixture `make`: a selector for so many clients.

    Set `chooses = False` for one that always picks the same, `takes_all = False` for one that
    picks from a part of the clients only, and `refuses = False` for one that picks fewer where
    there are not as many as it was asked for.

        class TestMine(SelectorContract):
            @pytest.fixture
            def make(self):
                return lambda clients: MySelector()
    """

    chooses = True
    takes_all = True
    refuses = True

    @pytest.mark.parametrize("seed", range(10))
    def test_what_is_picked_is_there_and_there_once(self, make: Make, seed: int) -> None:
        rng = np.random.default_rng(seed)
        clients = int(rng.integers(1, 300))
        roster = lived(seed, clients)
        count = int(rng.integers(0, len(there(roster)) + 1))
        columns = {column: values.copy() for column, values in roster.state().items()}
        short = False
        try:
            picked = make(clients)(roster, count, rng)
        except Shortage as shortage:
            short, picked = True, np.array(shortage.eligible, np.int64)
        assert len(picked) < count if short else len(picked) == count
        assert picked.dtype == np.int64
        assert len(set(picked.tolist())) == len(picked)
        assert set(picked.tolist()) <= set(there(roster).tolist())
        for column, values in columns.items():
            assert np.array_equal(values, getattr(roster, column), equal_nan=True), column

    def test_the_same_generator_state_picks_the_same(self, make: Make) -> None:
        roster = Roster(np.arange(50_000) % 7 + 1)
        selector = make(50_000)
        picks = [selector(roster, 20, np.random.default_rng(s)).tolist() for s in (5, 5, 6)]
        assert picks[0] == picks[1]
        assert picks[1] != picks[2] or not self.chooses
        afresh = selector(Roster(np.arange(50_000) % 7 + 1), 20, np.random.default_rng(5))
        assert afresh.tolist() == picks[0]

    def test_what_changed_is_noticed(self, make: Make) -> None:
        """Selectors keep what makes them fast, and must not go by what is no longer so."""
        before, rng = lived(3, 200), np.random.default_rng(2)
        selector = make(200)
        before.available = None
        sizes, values = rng.geometric(0.01, 200), rng.lognormal(0, 2, 200)
        selector(before, 5, rng)
        after = lived(3, 200)
        after.available = None
        for roster in (before, after):
            roster.put("examples", slice(None), sizes)
            roster.record_seen(np.arange(200), values)
        picks = [selector(roster, 20, np.random.default_rng(4)) for roster in (before, after)]
        assert picks[0].tolist() == picks[1].tolist()

    def test_it_says_who_it_is_the_same_way_every_time(self, make: Make) -> None:
        """A checkpoint tells one simulation from another by this text, and members each other."""
        assert repr(make(4)) == repr(make(4))
        assert " at 0x" not in repr(make(4))

    def test_nobody_is_an_empty_array_and_fewer_are_refused(self, make: Make) -> None:
        selector, rng = make(3), np.random.default_rng(1)
        for available in (None, np.zeros(3, np.bool_)):
            picked = selector(Roster(np.ones(3, np.int64), available), 0, rng)
            assert picked.dtype == np.int64
            assert picked.shape == (0,)
        with pytest.raises(SelectionError, match="-1 clients were asked for"):
            selector(Roster(np.ones(3, np.int64)), -1, rng)

    def test_everybody_can_be_asked_for(self, make: Make) -> None:
        if not self.takes_all:
            pytest.skip("it picks from a part of the clients only")
        picked = make(40)(Roster(np.arange(1, 41)), 40, np.random.default_rng(1))
        assert sorted(picked.tolist()) == list(range(40))

    def test_more_than_there_are_is_refused_with_both_numbers(self, make: Make) -> None:
        if not self.refuses:
            pytest.skip("it picks fewer instead")
        selector, rng = make(3), np.random.default_rng(1)
        with pytest.raises(Shortage, match="4 clients were asked for, and there are 3"):
            selector(Roster(np.ones(3, np.int64)), 4, rng)
        some = np.array([True, False, True])
        with pytest.raises(Shortage, match="3 clients were asked for, and 2 of 3 are available"):
            selector(Roster(np.ones(3, np.int64), some), 3, rng)
        with pytest.raises(Shortage) as refused:
            selector(Roster(np.ones(3, np.int64), some), 3, rng)
        assert refused.value.eligible == [0, 2]


def lived(seed: int, clients: int) -> Roster:
    """A roster in the middle of something: some clients known, some empty, some away."""
    rng = np.random.default_rng(seed)
    away, empty, known = rng.choice([0.0, 0.1, 0.9], 3)
    available = None if away == 0 else rng.random(clients) >= away
    sizes = np.where(rng.random(clients) < empty, 0, rng.geometric(0.1, clients))
    roster = Roster(sizes, available, speed=rng.lognormal(0, 1, clients))
    for turn in range(3):
        roster.round = turn
        some = np.flatnonzero(rng.random(clients) < known / 3)
        roster.record_selected(some)
        answered = some[rng.random(len(some)) < 0.8]
        roster.record_seen(answered, rng.normal(2, 2, len(answered)))
    roster.round = 3
    return roster
