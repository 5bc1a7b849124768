"""Contracts as test suites: subclass one in your own tests and your part is held to it."""

from __future__ import annotations

from hubless.testing.stores import StoreContract
from hubless.testing.strategies import StrategyContract

__all__ = ["StoreContract", "StrategyContract"]
