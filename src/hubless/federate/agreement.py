"""An agreement: what a federation's first member wrote down and every later one is held to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from hubless.errors import FederationError, HublessError, SignatureMismatch, UnknownVersion
from hubless.federate import layout
from hubless.signature import Signature
from hubless.store.base import Store

FORMAT = 1
_LARGEST = 64 << 20
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def check_limit(limit: float) -> float:
    """The root mean square beyond which params count as diverged, if it can be one."""
    if not (math.isfinite(limit) and limit > 0):
        raise FederationError(f"limit must be a finite number above 0, not {limit}")
    return limit


@dataclass(frozen=True)
class Agreement:
    """The mode, the model's signature and what counts as absurd, the same for all members."""

    mode: str
    signature: Signature
    limit: float
    strategy: str = ""
    """Empty where every member may have its own."""
    slots: tuple[str, ...] = ()
    """What the strategy's server optimizer keeps in each slice besides the params."""

    def to_bytes(self) -> bytes:
        document = {
            "hubless": FORMAT,
            "mode": self.mode,
            "limit": self.limit,
            "strategy": self.strategy,
            "slots": list(self.slots),
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
                f"{where}/{layout.FEDERATION} is not a federation's record: choose another folder, "
                "or remove it"
            ) from None
        if version != FORMAT:
            raise UnknownVersion(
                f"{where} was written in federation format {version}, this hubless knows {FORMAT}: "
                "install the same version of hubless at every site, or use a new folder"
            )
        try:
            signature = Signature.from_json(json.dumps(document["signature"]))
            limit = check_limit(float(document["limit"]))
            strategy, slots = str(document["strategy"]), tuple(map(str, document["slots"]))
            return cls(str(document["mode"]), signature, limit, strategy, slots)
        except (*_UNREADABLE, HublessError) as error:
            raise FederationError(
                f"{where}/{layout.FEDERATION} is damaged ({error}): choose another folder"
            ) from None

    def hold(self, mine: Agreement, where: str) -> None:
        """Raise unless a member that agrees to `mine` can take part."""
        if lines := self.signature.differences(mine.signature):
            listed = "\n  ".join([*lines[:20], *([f"... {len(lines)} in all"] * (len(lines) > 20))])
            raise SignatureMismatch(
                f"this model is not the one {where} was started with:\n  {listed}\n"
                "use the same model at every site, or share only what they have in common "
                "with share=[patterns]",
                lines,
            )
        if self.mode != mine.mode:
            raise FederationError(
                f"{where} runs in mode {self.mode!r}, this member asked for {mine.mode!r}: "
                "use the same mode at every site"
            )
        if self.strategy != mine.strategy:
            raise FederationError(
                f"{where} aggregates with {self.strategy}, this member asked for {mine.strategy}: "
                "synchronous members all need the same strategy, because each computes a part"
            )


def read_agreement(store: Store) -> Agreement:
    """The agreement of the federation that lives in this store; NotFound where there is none."""
    return Agreement.parse(store.get(layout.FEDERATION, _LARGEST), store.url)
