"""Looking at a federation from outside: who is there, and what it has arrived at."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hubless.errors import FederationError, NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.averaging import collective
from hubless.federate.fold import Flat, open_update
from hubless.federate.keys import Posted
from hubless.federate.outside.onlooker import newest_result
from hubless.store.base import Store
from hubless.store.reliable import Reliable
from hubless.strategy.fedavg import FedAvg


@dataclass(frozen=True)
class Present:
    """One client, as its newest update shows it; `age` is by the store's clock."""

    client: str
    sequence: int
    version: int
    age: float
    examples: int
    bytes: int
    metrics: dict[str, float] = field(default_factory=dict)
    trouble: str = ""
    valuation: float | None = None
    left: bool = False


@dataclass(frozen=True)
class Collective:
    """What a federation has arrived at, and whose updates are in it."""

    flat: Flat
    clients: list[str]
    version: int


def agreed(store: Store) -> Agreement:
    """What the members agreed on; a clear error where there is no federation."""
    try:
        return read_agreement(store)
    except NotFound:
        raise FederationError(
            f"there is no federation at {store.url}: nobody has shared anything there yet"
        ) from None


def survey(store: Store) -> tuple[Agreement, list[Present]]:
    """Everybody who ever shared something that is still there, with their newest metrics."""
    looked_at = Reliable.of(store)
    with looked_at.within(math.inf):
        agreement = agreed(looked_at)
        folder = keys.UPDATES if agreement.mode == "async" else keys.ROUNDS
        left = keys.parse_listing(looked_at.list(keys.MEMBERS)).left
        newest = keys.newest(keys.parse_updates(looked_at.list(folder)))
        present = [_member(looked_at, agreement, posted) for posted in newest.values()]
        return agreement, [replace(p, left=p.client in left) for p in present]


def arrived_at(store: Store, refuse: Callable[[Refused], None]) -> tuple[Agreement, Collective]:
    """The federation's model: everybody's newest averaged, or the newest complete round."""
    looked_at = Reliable.of(store)
    with looked_at.within(math.inf):
        return _arrived_at(looked_at, refuse)


def _arrived_at(store: Reliable, refuse: Callable[[Refused], None]) -> tuple[Agreement, Collective]:
    agreement = agreed(store)
    if agreement.mode == "sync":
        newest = newest_result(store, agreement, refuse)
        if newest is None:
            raise FederationError(f"no round is complete at {store.url} yet")
        number, result = newest
        clients = [p.client for p in result.plan.updates]
        return agreement, Collective(result.version, clients, number + 1)
    averaged = collective(
        store, agreement.signature, FedAvg(), refuse, agreement.limit, agreement.outweigh
    )
    if averaged is None:
        raise FederationError(f"there is no usable update at {store.url} yet")
    version = max(p.version for p in averaged.included)
    clients = [p.client for p in averaged.included]
    return agreement, Collective(averaged.flat, clients, version)


def _member(store: Reliable, agreement: Agreement, posted: Posted) -> Present:
    trouble, metrics = "", {}
    signature, limit = agreement.signature, agreement.limit
    try:
        stored = open_update(store, posted, signature, limit, keep=("metrics",))
        metrics = _numbers(stored.kept["metrics"] or "{}")
    except Refused as refusal:
        trouble = refusal.reason
    except (StoreError, ValueError) as error:
        trouble = str(error)
    age = max(0.0, time.time() - posted.modified)
    return Present(
        posted.client,
        posted.sequence,
        posted.version,
        age,
        posted.examples,
        posted.size,
        metrics,
        trouble,
        posted.valuation,
    )


def _numbers(text: str) -> dict[str, float]:
    """Metrics as a peer wrote them, if that is what they are."""
    try:
        document = json.loads(text)
        return {str(name): float(value) for name, value in document.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError("its metrics cannot be read") from None
