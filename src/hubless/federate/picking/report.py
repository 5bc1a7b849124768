"""How a member keeps its valuations private, and remembers what that has cost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hubless.errors import FederationError
from hubless.privacy.ledger import Ledger
from hubless.privacy.mechanisms import Additive, Mechanism, SparseVector

_MYSELF = np.zeros(1, np.int64)
_TAIL = 1 << 16
"""The last line of a ledger is far shorter."""


def check_mechanism(mechanism: Mechanism) -> None:
    """Refuse a mechanism of which nobody could count what it gave away before a restart."""
    if not isinstance(mechanism, SparseVector | Additive):
        raise FederationError(
            f"private= takes a mechanism of hubless.privacy.mechanisms, not {mechanism!r}: "
            "what it gave away before a restart could not be counted"
        )


class Reporter:
    """Passes a member's valuations through a mechanism, and knows what that cost so far.

    The generator comes from the operating system's entropy: with one that others know, they could
    take the noise off again. What former processes under this name gave away stands in a `file` on
    the member's own disk. Where that is not known, it is counted as one report, the dearest there
    is, for each update they are known to have shared (`shared`) and one more for each of their
    `lives`, whose last write may still be on its way. The larger of both holds: who runs the
    bucket can delete traces, and a disk may be lost.

    >>> from hubless.privacy import Count
    >>> reporter = Reporter(Count(epsilon=0.5), shared=2, lives=1)
    >>> round(reporter.epsilon, 3)
    1.5
    """

    def __init__(
        self, mechanism: Mechanism, shared: int, lives: int, file: Path | None = None
    ) -> None:
        self._mechanism = mechanism
        self._rng = np.random.default_rng()
        self._ledger = Ledger(1)
        one = Ledger(1)
        check_mechanism(mechanism)
        priced = cast("SparseVector | Additive", mechanism)
        costs = [priced.cost]
        if isinstance(priced, SparseVector):
            costs.append(priced.fresh.cost)
        for cost in costs:
            one.pay(_MYSELF, cost)
        one.spent()  # what composing costs needs is missed now rather than in the midst of a run
        traced = {name: int(count[0]) * (shared + lives) for name, count in _paid(one).items()}
        self._restore(traced)
        self._file = None if file is None else _File(file)
        if self._file is not None:
            with self._file.open() as written:
                for name, count in traced.items():
                    written[name] = max(count, written.get(name, 0))
                self._restore(written)

    @property
    def epsilon(self) -> float:
        """What was given away so far, at the ledger's delta."""
        return self._ledger.spent()

    def report(self, valuation: float | None) -> float | None:
        """What may be published for a valuation; paid for here, whether or not it arrives."""
        if valuation is None:
            return None
        before = self._counts()
        values = np.array([valuation])
        (held,) = self._mechanism.report(_MYSELF, values, self._ledger, self._rng)
        if self._file is not None:
            # on the disk before anybody can see it: a crash must not make it forgotten
            with self._file.open() as written:
                for name, count in self._counts().items():
                    written[name] = written.get(name, 0) + count - before.get(name, 0)
        return float(held) if math.isfinite(held) else None

    def _counts(self) -> dict[str, int]:
        return {name: int(count[0]) for name, count in _paid(self._ledger).items()}

    def _restore(self, counts: Mapping[str, int]) -> None:
        self._ledger.restore({name: np.array([count]) for name, count in counts.items()})


class _File:
    """What one client gave away in one federation, on its own disk: the last line counts.

    Lines are only ever added, so a write that a crash cuts off takes nothing away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @contextmanager
    def open(self) -> Iterator[dict[str, int]]:
        """The counts as they stand, to be changed: on the disk when the block ends."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FederationError(
                f"the ledger of what private= gives away cannot be kept in {self.path}: {error}. "
                "Say where it can with ledger=PATH"
            ) from error
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            # two processes of one site may report at the same time
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            *lines, cut_off = file.read().split(b"\n")
            counts = self._parse(lines[-1]) if lines else {}
            before = dict(counts)
            yield counts
            if counts != before:
                file.write(
                    (b"\n" if cut_off else b"") + json.dumps({"paid": counts}).encode() + b"\n"
                )
                os.fsync(file.fileno())

    def _parse(self, line: bytes) -> dict[str, int]:
        try:
            paid = json.loads(line)["paid"]
            counts = {str(name): count for name, count in paid.items()}
            if not all(type(count) is int and count >= 0 for count in counts.values()):
                raise ValueError("its counts are no whole numbers")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FederationError(
                f"the ledger {self.path} cannot be read ({error}). It says what this client gave "
                "away: restore it, or remove it to count by what lies in the store"
            ) from error
        return counts


def ledger_path(client: str, url: str) -> Path | None:
    """Where a client's ledger for a federation lies unless `ledger=` says otherwise.

    That is below $HUBLESS_STATE, or where programs keep their state. What lives in memory needs
    none: it is forgotten with the process.
    """
    if url.startswith("memory:"):
        return None
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(os.environ.get("HUBLESS_STATE") or f"{state}/hubless").expanduser()
    where = re.sub(r"[^A-Za-z0-9]+", "-", url)[-40:].strip("-")
    return folder / "ledgers" / f"{client}-{where}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def _paid(ledger: Ledger) -> dict[str, NDArray[Any]]:
    """How often each kind of cost was paid, by the name that a ledger's state gives it."""
    return {name: count for name, count in ledger.state().items() if name.startswith("paid ")}
