"""Plans: the records that close rounds, and which of those that lie in the store bind anybody."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hubless.errors import AlreadyExists, FederationError, NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.keys import Listing, Posted, Round
from hubless.federate.member import Member
from hubless.federate.picking.standing import Pick, Standing
from hubless.store import codec
from hubless.store.base import Entry

ATTEMPTS = 100
"""Nobody honest closes a round so often: each time but the first leaves somebody's update out."""
PLAN_BYTES = 4 << 20
"""Room for ten thousand members."""
_LOOKS = 20
"""So often the newest round is looked for, as it may be collected while it is read."""
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Plan:
    """Which updates a round includes: written once, binding for all."""

    included: tuple[str, ...]
    attempt: int = 0
    before: tuple[int, int] | None = None
    """Round and attempt of the version a server optimizer steps from; -1 means the initial one."""
    pick: Pick | None = None
    """Who was to train, and what was known when they were drawn; None where everybody trains."""
    by: str = ""
    """Who closed the round."""
    nonce: str = ""
    """What nobody can know beforehand, so that no slice is made before its plan."""
    digest: str = ""
    """Of its bytes: slices say by it which plan they follow."""

    def to_bytes(self) -> bytes:
        before = list(self.before) if self.before else None
        picked = self.pick.to_json() if self.pick else {}
        document = {"included": list(self.included), "before": before, "by": self.by}
        return json.dumps({**document, "nonce": self.nonce, **picked}).encode()

    @classmethod
    def parse(cls, raw: bytes, number: int, attempt: int) -> Plan:
        """Read a round's plan; ValueError says why this cannot be one."""
        try:
            document = json.loads(raw)
            included, before = document["included"], _version(document["before"])
            picked = "picked" in document or "roster" in document
            pick = Pick.parse(document, number) if picked else None
            by, nonce = str(document["by"]), str(document["nonce"])
            digest = codec.fingerprint(raw)
            plan = cls(tuple(included), attempt, before, pick, by, nonce, digest)
            posted = plan.updates
            if len(posted) != len(included) or not included:
                raise ValueError("it includes what is no update")
            if len({p.client for p in posted}) != len(included):
                raise ValueError("it includes two updates of one client")
            if any(p.folder != f"{keys.round_folder(number)}updates/" for p in posted):
                raise ValueError("it includes updates of other rounds")
            if before is not None and not -1 <= before[0] < number:
                raise ValueError("it steps from a round that is not before it")
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except _DAMAGED as error:
            raise ValueError(f"it is damaged: {error}") from None
        return plan

    @cached_property
    def updates(self) -> list[Posted]:
        """The included updates, as their keys describe them."""
        return keys.parse_updates(Entry(key, 0, 0.0) for key in self.included)

    def known_after(self, number: int) -> dict[str, Standing]:
        """What everybody knows of the members once the round is over."""
        delivered = {p.client: (p.examples, p.valuation) for p in self.updates}
        return self.pick.after(number, delivered) if self.pick else {}


def _version(before: Any) -> tuple[int, int] | None:
    if before is None:
        return None
    number, attempt = before
    if type(number) is not int or type(attempt) is not int:
        raise ValueError("the version that it steps from is no version")
    return number, attempt


class Plans:
    """The plans of rounds, each fetched once: a plan that is written does not change.

    A round is closed by its first sound plan. A later attempt counts only if it leaves out
    updates that nobody can use. Whatever else lies where plans are is refused by name.
    `check` raises ValueError for a plan that is none for this federation, and `is_bad` tells
    whether nobody can use an update.
    """

    def __init__(
        self,
        member: Member,
        admits: Callable[[str], bool],
        check: Callable[[Plan, int, Listing], None],
        is_bad: Callable[[str, Plan, int, Listing], bool],
    ) -> None:
        self._member, self.admits, self._check, self._is_bad = member, admits, check, is_bad
        self.reached: tuple[int, int] | None = None
        """The version that this member is at: a round, and at which attempt it was completed."""
        self._read: dict[tuple[int, int], Plan | None] = {}
        self._binding: dict[int, Plan] = {}
        self._squatted: set[tuple[int, int]] = set()
        self._voided: set[int] = set()
        self._has_vanished = False

    def binding(self, number: int, listing: Listing) -> Plan | None:
        """The plan that binds a round as things stand, or None while it is open."""
        plan, judged, refused = self._binding.get(number), list[Plan](), dict[int, str]()
        attempts = listing.rounds[number].plans
        for attempt in range(plan.attempt + 1 if plan else 0, max(attempts, default=-1) + 1):
            if attempt not in attempts:
                if (number, attempt) in self._squatted:
                    continue
                break
            following = self._sound(number, attempt, listing)
            if following is None:
                continue
            if plan is None and not _is_backed(following, listing.rounds[number]):
                refused[attempt] = "nothing is there of what it includes"
                continue
            judged.append(following)
            try:
                refused[attempt] = self._objection(following, plan, number, listing)
            except NotFound:
                # what it leaves out was collected since that listing
                self._has_vanished = True
                return plan
            plan = plan if refused[attempt] else following
        if plan is not None and self.knows_before(number, judged):
            self._binding[number] = plan
            for attempt, reason in refused.items():
                if reason:
                    self._refuse(number, attempt, reason)
        return plan

    def knows_before(self, number: int, judged: Sequence[Plan]) -> bool:
        """Whether this member can tell what these plans of a round have to step from.

        Who is not there yet may be wrong about them, and decides nothing for good.
        """
        is_there = self.reached is not None and self.reached[0] == number - 1
        return is_there or all(plan.before is None or plan.before[0] < 0 for plan in judged)

    def _objection(self, plan: Plan, former: Plan | None, number: int, listing: Listing) -> str:
        """Why an attempt may not close a round, or take a former one's place; empty if it may."""
        before, reached = plan.before, self.reached
        if (
            before is not None
            and reached is not None
            and reached[0] == before[0]
            and reached != before
        ):
            return "it steps from another attempt of the round before than the last"
        if former is None:
            return ""
        left_out = [key for key in former.included if key not in plan.included]
        rest = tuple(key for key in former.included if key in plan.included)
        if not left_out or (rest and (rest != plan.included or before != former.before)):
            return f"it does not follow from attempt {former.attempt}"
        for key in left_out:
            if not self._is_bad(key, former, number, listing):
                return f"it leaves out {key}, and nothing is wrong with that"
        return ""

    def newest(self, listing: Listing, reached: int) -> tuple[int, Plan] | None:
        """The newest round that was closed, and how, for a member that has `reached` one.

        A round that nothing leads up to is not believed: it stands alone, far ahead.
        """
        for _ in range(_LOOKS):
            self._has_vanished = False
            newest, strays = self._newest(listing, reached)
            if not self._has_vanished:
                # a listing that is out of date makes rounds look as if they stood alone
                for number in strays:
                    for attempt in listing.rounds[number].plans:
                        self._refuse(number, attempt, "no round leads up to it")
                return newest
            listing = self._member.look()
        return newest

    def close(
        self,
        number: int,
        included: Sequence[str],
        listing: Listing,
        before: tuple[int, int] | None,
        pick: Pick | None,
    ) -> None:
        """Close a round with these updates, unless somebody else has closed it already."""
        attempt = self._next_attempt(number, listing)
        earlier = listing.rounds[number].plans & set(range(attempt))
        if any((number, each) not in self._read for each in earlier):
            # collected since that listing: the round is over
            return
        by, nonce = self._member.client, secrets.token_hex(8)
        plan = Plan(tuple(included), attempt, before, pick, by, nonce)
        key, body = keys.plan_key(number, attempt), plan.to_bytes()
        if len(body) > PLAN_BYTES:
            raise FederationError(
                f"{key} would take {len(body)} bytes, which is more than members read: "
                f"{len(included)} are too many for one round. Pick some with who=Selection(...)"
            )
        try:
            self._member.store.put(key, [body], create=True)
        except AlreadyExists:
            # something that is no object may stand there: then nobody can read it, and it is void
            listing = self._member.look()
            newest = self.newest(listing, number - 1)
            is_over = newest is not None and newest[0] > number
            if not is_over and attempt not in listing.rounds[number].plans:
                self._squatted.add((number, attempt))
                reason = "it cannot be read, and nothing can be created in its place"
                self._member.refuse(Refused("?", key, reason))

    def void(self, number: int, attempt: int) -> None:
        """Open a round again that was closed with nothing but updates that nobody can use."""
        self._binding.pop(number, None)
        self._read[number, attempt] = None
        self._voided.add(number)

    def arrive(self, number: int, plan: Plan) -> None:
        """Be at the version that a round came to: its plan binds, whatever is deleted later."""
        self.reached = number, plan.attempt
        self._binding[number] = plan

    def get(self, number: int, attempt: int) -> Plan | None:
        """A plan that was read before, if it was sound."""
        return self._read.get((number, attempt))

    def forget_before(self, number: int) -> None:
        """Forget the plans of rounds that are over."""
        self._read = {at: plan for at, plan in self._read.items() if at[0] >= number}
        self._binding = {n: plan for n, plan in self._binding.items() if n >= number}
        self._squatted = {at for at in self._squatted if at[0] >= number}
        self._voided = {n for n in self._voided if n >= number}

    def _next_attempt(self, number: int, listing: Listing) -> int:
        """The first attempt at closing a round that nobody made yet."""
        taken = listing.rounds[number].plans
        attempt = next(
            a for a in itertools.count() if a not in taken and (number, a) not in self._squatted
        )
        for stray in taken:
            if stray > attempt:
                self._refuse(number, stray, "there is no attempt before it")
        if attempt >= ATTEMPTS:
            raise FederationError(
                f"round {number} was closed {attempt} times: somebody fills "
                f"{keys.round_folder(number)} with plans that bind nobody. Remove them, and call "
                "step again"
            )
        return attempt

    def _newest(self, listing: Listing, reached: int) -> tuple[tuple[int, Plan] | None, list[int]]:
        """The newest round that is believed, and those after it that are not."""
        strays: list[int] = []
        for number in reversed(listing.planned):
            is_far = number > max(reached + 1, 0)
            if is_far and not listing.rounds[number - 1].plans:
                strays.append(number)
                continue
            plan = self.binding(number, listing)
            if plan is None:
                continue
            if is_far and not self._was_closed(number - 1, listing):
                strays.append(number)
                continue
            return (number, plan), strays
        return None, strays

    def _was_closed(self, number: int, listing: Listing) -> bool:
        """Whether others may have gone on from a round, as some do before they read its updates."""
        return number in self._voided or self.binding(number, listing) is not None

    def _sound(self, number: int, attempt: int, listing: Listing) -> Plan | None:
        """The plan of an attempt, or None where what lies there binds nobody."""
        at = number, attempt
        if at not in self._read:
            try:
                raw = self._member.store.get(keys.plan_key(number, attempt), PLAN_BYTES)
                plan = Plan.parse(raw, number, attempt)
                strangers = [p.client for p in plan.updates if not self.admits(p.client)]
                if strangers:
                    raise ValueError(f"it includes {', '.join(strangers)}, who are no members")
                self._check(plan, number, listing)
            except NotFound:
                # collected since that listing
                self._has_vanished = True
                return None
            except (ValueError, StoreError) as error:
                if isinstance(error, StoreError):
                    # raises if it is the store that fails, and not this object
                    self._member.store.list(keys.MEMBERS)
                self._refuse(number, attempt, str(error))
                self._read[at] = None
            else:
                self._read[at] = plan
        return self._read[at]

    def _refuse(self, number: int, attempt: int, reason: str) -> None:
        self._member.refuse(Refused("?", keys.plan_key(number, attempt), reason))


def _is_backed(plan: Plan, round_: Round) -> bool:
    """Whether anything is there of what a plan includes: nobody closes a round with nothing."""
    return any(key in round_.updates for key in plan.included)
