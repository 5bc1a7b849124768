"""Contracts as test suites, and what they hold against: subclass one in your own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.testing.faults import Faulty as Faulty
    from hubless.testing.metered import Metered as Metered
    from hubless.testing.reference import State as State
    from hubless.testing.reference import Update as Update
    from hubless.testing.reference import aggregate as aggregate
    from hubless.testing.selectors import SelectorContract as SelectorContract
    from hubless.testing.stores import StoreContract as StoreContract
    from hubless.testing.strategies import StrategyContract as StrategyContract

__getattr__, __dir__ = exported(__name__)
