"""Who trains next: rosters and selectors. Each selector is a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.select.active import Active as Active
    from hubless.select.active import Unseen as Unseen
    from hubless.select.activity import Activity as Activity
    from hubless.select.atmost import AtMost as AtMost
    from hubless.select.custom import Custom as Custom
    from hubless.select.custom import selector as selector
    from hubless.select.fixed import Fixed as Fixed
    from hubless.select.fixed import Weighted as Weighted
    from hubless.select.naming import kinds as kinds
    from hubless.select.naming import named as named
    from hubless.select.oort import Oort as Oort
    from hubless.select.optimal import OptimalSampling as OptimalSampling
    from hubless.select.powerofchoice import PowerOfChoice as PowerOfChoice
    from hubless.select.reachable import Reachable as Reachable
    from hubless.select.refresh import Refreshed as Refreshed
    from hubless.select.roster import Roster as Roster
    from hubless.select.roster import Selector as Selector
    from hubless.select.roster import Unbiased as Unbiased
    from hubless.select.roundrobin import RoundRobin as RoundRobin
    from hubless.select.share import Heavy as Heavy
    from hubless.select.share import Light as Light
    from hubless.select.uniform import Uniform as Uniform

# a new selector is one new file: nothing has to be listed here for it to be found
__getattr__, __dir__ = exported(__name__, kinds="naming")
