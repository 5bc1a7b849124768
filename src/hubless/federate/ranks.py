"""Several processes of one site, as torchrun starts them: rank 0 is the member for all of them.

What rank 0 comes back with, params or an error, every rank gets. Nothing here imports torch before
there are several ranks.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from hubless.errors import FederationError, HublessError, ParamsError
from hubless.federate.federation import Federation
from hubless.federate.fold import Flat
from hubless.federate.member import Report
from hubless.federate.model import M, Model, load
from hubless.federate.terms import Terms
from hubless.signature import Signature
from hubless.store.reliable import Reliable

T = TypeVar("T")

_ASSEMBLED = timedelta(minutes=5)
"""So long ranks wait for each other to join."""
_CALLED = timedelta(days=1)
"""So long others wait for a call of rank 0, which has its own deadline for what it does."""
_joins = itertools.count()


def several() -> bool:
    """Whether this process is one of several that train one model."""
    if _is_announced():
        return True
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    return bool(dist.get_world_size() > 1)


def among_ranks(terms: Terms, mode: str, begin: Callable[[], Federation]) -> Federation:
    """This rank's end of a federation; ranks that go by different names are members each."""
    ranks = Ranks.assembled()
    if len(ranks.of_all(terms.client)) > 1:
        return begin()
    return Ranked(ranks, terms, mode, begin)


class Ranks:
    """What the processes of a site tell each other."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group = group
        # its threads have to be over before the process is
        atexit.register(self.part)

    @classmethod
    def assembled(cls) -> Ranks:
        """All processes of this site, once each of them has asked for it."""
        dist = _torch("distributed")
        try:
            if not _is_announced():
                # what the script trains with may carry tensors of accelerators only
                group = dist.new_group(backend="gloo", timeout=_CALLED)
                return cls(group, dist.get_rank(), dist.get_world_size())
            # a group that a script makes or ends for itself is left to it
            store, rank, size = next(iter(dist.rendezvous("env://", timeout=_ASSEMBLED)))
            life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            place = dist.PrefixStore(f"hubless/{life}/{next(_joins)}", store)
            return cls(dist.ProcessGroupGloo(place, rank, size, _CALLED), rank, size)
        except RuntimeError as error:
            raise FederationError(
                f"the ranks of this site do not find each other; each has to join: {error}"
            ) from error

    def decided(self, act: Callable[[], T]) -> T:
        """What rank 0 comes to by this; its errors are raised everywhere."""
        if self.rank:
            failed, outcome = pickle.loads(self._sent(b""))
            if failed:
                raise outcome
            return outcome  # type: ignore[no-any-return]
        try:
            outcome = act()
        except Exception as error:
            failure = error if isinstance(error, HublessError) else FederationError(repr(error))
            self._sent(pickle.dumps((True, failure)))
            raise
        self._sent(pickle.dumps((False, outcome)))
        return outcome

    def spread(self, flat: Flat) -> None:
        """Overwrite this on every rank with what rank 0 has."""
        self._do("broadcast", _torch().from_numpy(flat))

    def total(self, number: int) -> int:
        """The sum over all ranks."""
        counted = _torch().tensor([number])
        self._do("allreduce", counted)
        return int(counted)

    def of_all(self, text: str) -> set[str]:
        """What each rank says."""
        return {pickle.loads(self._sent(pickle.dumps(text), root)) for root in range(self.size)}

    def part(self) -> None:
        """Give the group up, which nobody uses any more."""
        if self._group is not None:
            self._group.shutdown()
        self._group = None

    def _sent(self, message: bytes, root: int = 0) -> bytes:
        torch = _torch()
        size = torch.tensor([len(message)])
        self._do("broadcast", size, root)
        content = np.zeros(int(size), np.uint8)
        if self.rank == root:
            content[:] = np.frombuffer(message, np.uint8)
        self._do("broadcast", torch.from_numpy(content), root)
        return content.tobytes()

    def _do(self, what: str, tensor: Any, root: int | None = None) -> None:
        dist = _torch("distributed")
        try:
            if what == "broadcast":
                options = dist.BroadcastOptions()
                options.rootRank = root or 0
                self._group.broadcast([tensor], options).wait()
            else:
                self._group.allreduce([tensor]).wait()
        except RuntimeError as error:
            raise FederationError(f"another rank of this site is gone: {error}") from error


@dataclass(frozen=True)
class _Outcome:
    """What a call of rank 0 came to: how far it is, and what it loaded."""

    version: int
    resumed: bool
    size: int
    digest: str | None = None


class Ranked(Federation):
    """One rank's end of a federation. Every rank makes the same calls, and rank 0 does them.

    Examples are counted over all ranks; metrics and valuations are those of rank 0.
    """

    def __init__(
        self, ranks: Ranks, terms: Terms, mode: str, begin: Callable[[], Federation]
    ) -> None:
        self._begin(terms)
        self._ranks, self._kind = ranks, mode
        self.rank, self.ranks = ranks.rank, ranks.size
        self._lead: Federation | None = None
        self._calls = self._loads = 0

        def join() -> _Outcome:
            self._lead = begin()
            return _Outcome(self._lead.version, self._lead.resumed, 0)

        self._outcome = ranks.decided(join)

    @property
    def alone(self) -> Federation | None:
        return self._lead

    @property
    def client(self) -> str:
        return self.terms.client

    @property
    def mode(self) -> str:
        return self._kind

    @property
    def store(self) -> Reliable:
        if self._lead is None:
            raise FederationError("only rank 0 of a site uses the store")
        return self._lead.store

    @property
    def version(self) -> int:
        return self._outcome.version

    @property
    def resumed(self) -> bool:
        return self._outcome.resumed

    def together(self, decide: Callable[[], T]) -> T:
        return self._ranks.decided(decide)

    def catch_up(self, model: M) -> M:
        return self._all(model, lambda lead: model)

    def pull(self, model: M) -> M:
        self._check_open()
        return self._all(model, lambda lead: lead.pull(model))

    def start(self, model: M) -> M:
        return self._all(model, lambda lead: lead.start(model), in_place=True)

    def meet(
        self,
        model: M,
        *,
        examples: int | None = None,
        metrics: Mapping[str, float] | None = None,
        valuation: float | None = None,
    ) -> M:
        self._check_open()
        total = self._total(examples)
        return self._all(
            model,
            lambda lead: lead.meet(model, examples=total, metrics=metrics, valuation=valuation),
        )

    def finish(
        self,
        model: M | None = None,
        *,
        examples: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> M:
        self._check_open()
        given = self._model_or(model)
        total = self._total(examples)
        metrics = self._reported if metrics is None else metrics
        result = self._all(given, lambda lead: lead.finish(given, examples=total, metrics=metrics))
        self.close()
        return result

    def _turn(self, model: M, report: Callable[[], Report]) -> M:
        self._calls += 1
        if self._lead is not None:
            self._lead.member.calls += 1
        if self._calls % self.terms.every:
            return model
        own = report()
        counted = replace(own, examples=self._ranks.total(own.examples))
        return self._all(model, lambda lead: lead.take_part(model, lambda: counted))

    def _total(self, examples: int | None) -> int | None:
        """The examples of all ranks, or None where none of them knows of any."""
        if examples is None:
            examples = self._examples if self._batches is None else self._batches.take()
        return self._ranks.total(examples or 0) or None

    def _all(self, model: M, act: Callable[[Federation], M], *, in_place: bool = False) -> M:
        """Let rank 0 act, and load on every rank what it has loaded since the last time."""
        result = model

        def lead() -> _Outcome:
            nonlocal result
            assert self._lead is not None
            result = act(self._lead)
            outcome = _Outcome(self._lead.version, self._lead.resumed, 0)
            if self._lead.loads == self._loads:
                return outcome
            self._loads = self._lead.loads
            signature = Signature.of(self._params(result))
            return replace(outcome, size=signature.size, digest=signature.digest)

        self._outcome = self._ranks.decided(lead)
        if self._outcome.digest is None:
            return result
        params = self._params(result)
        signature = Signature.of(params)
        if signature.digest != self._outcome.digest:
            raise ParamsError("the ranks of this site train different models")
        flat = signature.pack(params)
        self._ranks.spread(flat)
        if self.rank:
            result = load(result, signature.unpack(flat), in_place=in_place)
        return result

    def _tell(self, model: Model) -> None:
        """Rank 0 tells what is shared, for all."""

    def _leave(self) -> None:
        if self._lead is not None:
            self._lead.close()
        self._ranks.part()


def _torch(part: str = "") -> Any:
    return importlib.import_module(f"torch.{part}" if part else "torch")


def _is_announced() -> bool:
    """Whether the environment tells of other ranks, and where to meet them."""
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdecimal() and int(size) > 1 and {"RANK", "MASTER_ADDR"} <= os.environ.keys()
