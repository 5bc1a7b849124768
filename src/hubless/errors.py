"""Every error hubless raises on purpose, in one tree.

HublessError
├── ParamsError             the caller's own params cannot be shared
├── DataError               data that is not there, or not what it should be
├── TaskError               a model, loss, metric or recipe that cannot be trained as given
├── SelectionError          a selector that was asked for, or gave, something impossible
│   └── Shortage            more clients were asked for than can be picked
├── StrategyError           a strategy whose settings or weights make no sense
├── PrivacyError            a mechanism, cost, budget or report that makes no sense
├── ClientFailed            one simulated client's training raised
│   └── Diverged            its loss or params are no longer finite
├── StoreError              a store said no, or nothing
│   ├── NotFound            nothing under that key
│   ├── NoObject            a link, a pipe or the like where an object should be
│   ├── AlreadyExists       create-only write of a key that is taken
│   ├── WrongSize           an object that is shorter or longer than it should be
│   ├── Denied              no such bucket, or no right to use it
│   └── Unsupported         the store cannot do what was asked, ever
├── FederationError         this member cannot take part
│   ├── BadName             a client name that cannot be a key
│   ├── UnknownVersion      a federation written by another format of hubless
│   ├── SignatureMismatch   another model than the federation's
│   ├── NameTaken           a second live process joined under this name
│   ├── QuorumMissed        too few updates before the deadline
│   ├── TooLate             a round that could not be taken part in before the deadline
│   ├── RolledBack          the store shows an earlier state than this member has seen
│   └── UnsafeStore         synchronous rounds need create-if-absent, and it is not honoured
└── Refused                 a peer's update that was not let in
"""

from __future__ import annotations

from collections.abc import Sequence

from hubless.masked import masked


def printable(text: str, *, lines: bool = False) -> str:
    """Text that may be a stranger's, without what a terminal would act upon.

    >>> printable("a" + chr(27) + "[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else "?" for c in text)


def _safe(text: str, *, lines: bool = False) -> str:
    return printable(masked(text), lines=lines)


class HublessError(Exception):
    """The root: catch this to catch everything hubless raises on purpose.

    Messages quote what lies in a store or a file, so they are made harmless for a terminal here;
    and addresses, which may have somebody's password in them.
    """

    def __str__(self) -> str:
        return _safe(str(self.args[0]) if self.args else "", lines=True)


class ParamsError(HublessError):
    """The caller's own params cannot be shared: not arrays, not finite, or of other shapes."""


class DataError(HublessError):
    """Data is not where it was looked for, or is not what it should be."""


class TaskError(HublessError):
    """This model, loss, metric or recipe cannot be trained as given."""


class SelectionError(HublessError):
    """A selector was asked for, or gave, something impossible."""


class Shortage(SelectionError):
    """More clients were asked for than can be picked; `eligible` are those who can."""

    def __init__(self, message: str, eligible: Sequence[int]) -> None:
        super().__init__(message, eligible)
        self.eligible = eligible


class StrategyError(HublessError):
    """A strategy's settings make no sense, or what its weighting gave."""


class PrivacyError(HublessError):
    """A mechanism, a cost, a budget or a report makes no sense."""


class ClientFailed(HublessError):
    """Training one simulated client raised; the original error is the cause."""

    def __init__(self, message: str, client: int, round: int) -> None:
        super().__init__(message, client, round)
        self.client = client
        self.round = round


class Diverged(ClientFailed):
    """A client's loss or params are no longer finite."""


class StoreError(HublessError):
    """A store operation failed; `key` says on what."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message, key)
        self.key = key


class NotFound(StoreError):
    """There is nothing under this key."""


class NoObject(StoreError):
    """What stands under this key is no object: a link, a pipe or the like."""


class AlreadyExists(StoreError):
    """A create-only write found its key taken."""


class WrongSize(StoreError):
    """The object is shorter or longer than what was asked for."""


class Denied(StoreError):
    """There is no such bucket, or these credentials may not use it."""


class Unsupported(StoreError):
    """The store cannot do this at all, so trying again is pointless."""


class FederationError(HublessError):
    """This member cannot take part, and the message says what to change."""


class BadName(FederationError):
    """The client name cannot be part of a key."""


class UnknownVersion(FederationError):
    """The federation was written in a format that this hubless does not know."""


class SignatureMismatch(FederationError):
    """This member's model is not the federation's; `differences` lists each parameter."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message, differences)
        self.differences = differences


class NameTaken(FederationError):
    """Another live process joined later under the same client name."""


class QuorumMissed(FederationError):
    """The deadline passed with too few updates; `missing` names who did not deliver."""

    def __init__(self, message: str, missing: list[str]) -> None:
        super().__init__(message, missing)
        self.missing = missing


class TooLate(FederationError):
    """A round could not be taken part in, or read to its end, before the deadline."""


class RolledBack(FederationError):
    """The store shows an earlier state of the federation than this member has seen."""


class UnsafeStore(FederationError):
    """The store does not honour create-if-absent, which this mode needs."""


class Refused(HublessError):
    """A peer's update was not let in; the run goes on without it."""

    def __init__(self, client: str, key: str, reason: str) -> None:
        super().__init__(client, key, reason)
        self.client = client
        self.key = key
        self.reason = _safe(reason)

    def __str__(self) -> str:
        key = printable(self.key)
        return f"update of client {self.client!r} refused: {self.reason} (key {key})"
