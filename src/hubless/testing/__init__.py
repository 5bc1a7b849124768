"""Contracts as test suites: subclass one in your own tests and your part is held to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.testing.stores import StoreContract as StoreContract
    from hubless.testing.strategies import StrategyContract as StrategyContract

_HOMES = {"StoreContract": "stores", "StrategyContract": "strategies"}

__getattr__, __dir__ = exported(__name__, _HOMES)
