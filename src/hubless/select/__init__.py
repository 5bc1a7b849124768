"""Who trains next: rosters and selectors. Each selector is a file of its own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from hubless.select.activity import Activity as Activity
    from hubless.select.atmost import AtMost as AtMost
    from hubless.select.custom import selector as selector
    from hubless.select.fixed import Fixed as Fixed
    from hubless.select.fixed import Weighted as Weighted
    from hubless.select.naming import named as named
    from hubless.select.oort import Oort as Oort
    from hubless.select.optimal import OptimalSampling as OptimalSampling
    from hubless.select.powerofchoice import PowerOfChoice as PowerOfChoice
    from hubless.select.roster import Roster as Roster
    from hubless.select.roster import Selector as Selector
    from hubless.select.roundrobin import RoundRobin as RoundRobin
    from hubless.select.share import Heavy as Heavy
    from hubless.select.share import Light as Light
    from hubless.select.uniform import Uniform as Uniform


_HOMES = {"Roster": "roster", "Selector": "roster", "named": "naming", "selector": "custom"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    # a new selector is one new file: nothing has to be listed here for it to be found
    if name[:1].isupper():
        selectors = importlib.import_module(f"{__name__}.naming").kinds()
        if name in selectors:
            return cast(object, selectors[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
