"""An agreement: what a federation's first member wrote down and every later one is held to."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from hubless.errors import FederationError, HublessError, SignatureMismatch, UnknownVersion
from hubless.federate import keys
from hubless.federate.fold import OUTWEIGH
from hubless.signature import Signature
from hubless.store.base import Store

FORMAT = 1
_LARGEST = 8 << 20
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def check_limit(limit: float) -> float:
    """The root mean square beyond which params count as diverged, if it can be one."""
    if not (math.isfinite(limit) and limit > 0):
        raise FederationError(f"limit must be a finite number above 0, not {limit}")
    return limit


@dataclass(frozen=True)
class Selecting:
    """How members of a synchronous federation are picked: whoever differs draws somebody else."""

    selector: str
    cohort: int
    seed: int
    members: tuple[str, ...]

    @classmethod
    def parse(cls, document: dict[str, object] | None) -> Selecting | None:
        if document is None:
            return None
        selector, cohort, seed = document["selector"], document["cohort"], document["seed"]
        members = document["members"]
        if not (isinstance(selector, str) and isinstance(members, list)):
            raise ValueError("how it selects cannot be read")
        if not (isinstance(cohort, int) and isinstance(seed, int)):
            raise ValueError("its cohort and seed are whole numbers")
        return cls(selector, cohort, seed, tuple(map(str, members)))

    def differences(self, mine: Selecting) -> list[str]:
        """What the federation has, and what a member has instead."""
        ours, theirs = asdict(self), asdict(mine)
        return [
            f"{name} {theirs[name]} here, {ours[name]} in the federation"
            for name in ours
            if ours[name] != theirs[name]
        ]


@dataclass(frozen=True)
class Agreement:
    """The mode, the model's signature and what counts as absurd, the same for all members."""

    mode: str
    signature: Signature
    limit: float
    outweigh: float = OUTWEIGH
    strategy: str = ""
    """Empty where every member may have its own."""
    slots: tuple[str, ...] = ()
    """What the strategy's server optimizer keeps in each slice besides the params."""
    selecting: Selecting | None = None
    """None where everybody trains in every round, or decides by itself."""

    def to_bytes(self) -> bytes:
        document = {
            "hubless": FORMAT,
            "mode": self.mode,
            "limit": self.limit,
            "outweigh": None if math.isinf(self.outweigh) else self.outweigh,
            "strategy": self.strategy,
            "slots": list(self.slots),
            "selecting": asdict(self.selecting) if self.selecting else None,
            "signature": json.loads(self.signature.to_json()),
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def parse(cls, raw: bytes, where: str) -> Agreement:
        """Read a federation's agreement, or say what is wrong with it."""
        try:
            document = json.loads(raw)
            version = document["hubless"]
        except _UNREADABLE:
            raise FederationError(
                f"{where}/{keys.FEDERATION} is not a federation's record: choose another folder, "
                "or remove it"
            ) from None
        if version != FORMAT:
            raise UnknownVersion(
                f"{where}/{keys.FEDERATION} is in format {version}, this hubless knows {FORMAT}: "
                "install the same version of hubless at every site, or use a new folder"
            )
        try:
            signature = Signature.from_json(json.dumps(document["signature"]))
            limit = check_limit(float(document["limit"]))
            strategy, slots = str(document["strategy"]), tuple(map(str, document["slots"]))
            selecting = Selecting.parse(document.get("selecting"))
            outweigh = document["outweigh"]
            outweigh = math.inf if outweigh is None else max(1.0, float(outweigh))
            mode = document["mode"]
            if mode not in ("async", "sync"):
                raise ValueError(f"there is no mode {mode!r}")
            return cls(mode, signature, limit, outweigh, strategy, slots, selecting)
        except (*_UNREADABLE, HublessError) as error:
            raise FederationError(
                f"{where}/{keys.FEDERATION} is damaged ({error}): choose another folder"
            ) from None

    def hold(self, mine: Agreement, url: str) -> None:
        """Raise unless a member that agrees to `mine` can take part."""
        where = f"{url} (as {keys.FEDERATION} says)"
        if lines := self.signature.differences(mine.signature):
            listed = "\n  ".join([*lines[:20], *([f"... {len(lines)} in all"] * (len(lines) > 20))])
            raise SignatureMismatch(
                f"this model is not the one {where} was started with:\n  {listed}\n"
                "use the same model at every site, or share only what they have in common "
                "with share=[patterns]",
                lines,
            )
        if self.mode != mine.mode:
            ways = {"async": "at any time", "sync": "in rounds"}
            raise FederationError(
                f"members of {where} meet {ways[self.mode]}, this one {ways[mine.mode]}: give "
                "every site the same pace, Anytime() or Rounds(...); on the command line, "
                "--members or --quorum means rounds"
            )
        if self.mode == "sync" and (self.limit > mine.limit or self.outweigh > mine.outweigh):
            raise FederationError(
                f"{where} lets in more than this member: limit={self.limit:g} and "
                f"outweigh={self.outweigh:g} there, {mine.limit:g} and {mine.outweigh:g} here. In "
                "rounds everybody has to refuse the same: join with the federation's, if you "
                "trust its members that far"
            )
        if self.strategy != mine.strategy:
            raise FederationError(
                f"{where} aggregates with {self.strategy}, this member asked for {mine.strategy}: "
                "synchronous members all need the same strategy, because each computes a part"
            )
        if self.selecting is None or mine.selecting is None:
            if self.selecting != mine.selecting:
                has = self.selecting.selector if self.selecting else "nobody: all members train"
                asked = mine.selecting.selector if mine.selecting else "none"
                raise FederationError(
                    f"{where} picks who trains by {has}, this member asked for {asked}: give "
                    "who=Selection(...) at every site, or at none"
                )
        elif lines := self.selecting.differences(mine.selecting):
            listed = "\n  ".join(lines)
            raise FederationError(
                f"{where} picks who trains in another way than this member:\n  {listed}\n"
                "every site needs the same who=Selection(...) and members=, because each draws for "
                "itself"
            )


def read_agreement(store: Store) -> Agreement:
    """The agreement of the federation that lives in this store; NotFound where there is none."""
    return Agreement.parse(store.get(keys.FEDERATION, _LARGEST), store.url)
