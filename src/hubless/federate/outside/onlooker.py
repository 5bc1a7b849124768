"""An onlooker: reads a federation as a member does, with all its checks, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hubless.errors import HublessError, Refused
from hubless.federate import keys
from hubless.federate.agreement import Agreement
from hubless.federate.keys import Listing
from hubless.federate.member import Member
from hubless.federate.rounds.completing import Completing, Result
from hubless.federate.rounds.plans import Plans
from hubless.federate.terms import Terms
from hubless.store.base import Bytes
from hubless.store.reliable import Reliable
from hubless.store.wrapping import ReadOnly
from hubless.strategy import parse
from hubless.strategy.fedavg import FedAvg


class Onlooker(Member):
    """A member that never joined: it refuses as members do, and publishes nothing."""

    def __init__(
        self, store: Reliable, agreement: Agreement, refuse: Callable[[Refused], None]
    ) -> None:
        strategy = parse(agreement.strategy) or FedAvg()
        looked_at = Reliable(ReadOnly(store.store), store.patience, store.clock)
        super().__init__(looked_at, Terms("onlooker", strategy, clock=store.clock))
        self.signature = agreement.signature
        self.limit, self.outweigh = agreement.limit, agreement.outweigh
        self._tell = refuse
        # nobody is waited for: what is missing is computed at once
        self.until = store.clock.now()

    def look(self) -> Listing:
        """What one listing tells; no name is one's own."""
        return keys.parse_listing(self.store.list(""))

    def publish(self, key: str, parts: Sequence[Bytes]) -> None:
        """Nothing: what an onlooker computes is for itself."""

    def miss(self, refusal: Refused) -> None:
        """Hand on what members would refuse."""
        self._tell(refusal)


def newest_result(
    store: Reliable, agreement: Agreement, refuse: Callable[[Refused], None]
) -> tuple[int, Result] | None:
    """The newest round that is complete, read and checked without taking part in it."""
    onlooker = Onlooker(store, agreement, refuse)
    names = agreement.selecting.members if agreement.selecting else ()
    plans = Plans(
        onlooker,
        lambda client: not names or client in names,
        lambda plan, number, listing: completing.check_version_before(plan, number, listing),
        lambda key, plan, number, listing: completing.is_bad(key, plan, number, listing),
    )
    computes = parse(agreement.strategy) is not None
    completing = Completing(onlooker, plans, 0.0, computes, agreement.slots)
    listing = onlooker.look()
    newest = plans.newest(listing, -1)
    for number in reversed(listing.planned):
        if newest is None or number > newest[0]:
            continue
        try:
            plan = plans.binding(number, listing)
            result = plan and completing.complete(number, plan)
        except HublessError as error:
            refuse(Refused("?", keys.round_folder(number), f"it is not complete: {error}"))
            continue
        if result:
            return number, result
    return None
