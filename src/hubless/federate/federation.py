"""A federation as one member sees it: what both modes have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubless import __version__, events
from hubless.errors import (
    AlreadyExists,
    FederationError,
    NameTaken,
    ParamsError,
    Refused,
    StoreError,
    Unsupported,
)
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.fold.serverstate import ServerState
from hubless.federate.fold.source import Flat, Own, Stored, check_own
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.model import M, Model, load, shared_params
from hubless.federate.picking.report import Reporter, Said, finite_valuation
from hubless.federate.terms import Terms
from hubless.rng import stream
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.base import Bytes
from hubless.store.reliable import Reliable
from hubless.update import whole_examples

KEPT_UPDATES = 2
"""A member's newest updates stay: a peer may be reading the one before the last."""


class Removable(Protocol):
    """A hook that can be taken off again."""

    def remove(self) -> None: ...


class Optimizer(Protocol):
    """Anything that calls back after each of its steps, as torch's optimizers do."""

    def register_step_post_hook(self, hook: Callable[..., None], /) -> Removable: ...


class Federation(ABC):
    """One member's end of a federation; made by `hubless.join`."""

    mode: str
    trains_on_alone = False
    """Whether a member goes on by itself while the store is out of reach."""

    def __init__(self, store: Reliable, terms: Terms) -> None:
        self.store = store
        self.terms = terms
        self.client = terms.client
        self.strategy = terms.strategy
        self.clock = terms.clock
        self.events = events.Events(list(terms.listeners))
        self.version = 0
        self.signature: Signature | None = None
        self.limit = terms.limit
        self.state = ServerState(terms.strategy)
        self._calls = 0
        self._reported: dict[str, float] = {}
        self._valued: float | None = None
        self._hook: Removable | None = None
        self._closed = False
        entries = store.list("")
        if any(entry.key == keys.FEDERATION for entry in entries):
            found = read_agreement(store)
            found.hold(self._agreement(found.signature), store.url)
        mine = [p for p in keys.parse_updates(entries) if p.client == self.client]
        self.incarnation = self._begin_life(keys.lives(entries, self.client))
        # a process that takes a single step before it ends draws anew each time
        self._rng = stream(terms.seed, "participation", terms.client, self.incarnation.count)
        self.sequence = max((p.sequence for p in mine), default=-1) + 1
        self.resumed = bool(mine)
        former = self.incarnation.count - 1
        self._reporter = Reporter(terms.private, self.sequence, former) if terms.private else None
        reached = max((p.version + 1 for p in mine), default=0)
        self.version = min(reached, keys.VERSIONS - 1)
        self.events.emit(
            events.Joined(
                client=self.client,
                url=store.url,
                mode=self.mode,
                incarnation=str(self.incarnation),
                resumed=self.resumed,
            )
        )

    def step(
        self,
        model: M,
        *,
        examples: int,
        metrics: Mapping[str, float] | None = None,
        valuation: float | None = None,
    ) -> M:
        """Share what was trained, take in what others did, and load the result back.

        A module is changed in place and returned; named arrays come back as a new dict. With
        `every`, `participation` or `selector` set at join, a call may leave the model as it is.
        `valuation` is what training this member is worth, for selectors that go by it.
        """
        self._check_open()
        noted = {name: float(value) for name, value in (metrics or {}).items()}
        said = Said(whole_examples(examples), noted, finite_valuation(valuation))
        selection = self.terms.selection
        if selection is not None and selection.by_value and valuation is None:
            raise ParamsError(
                f"{selection.selector!r} goes by what training each member is worth: say so with "
                "step(..., valuation=...), or federation.report(valuation=...) under optimizer="
            )
        self._calls += 1
        if self._calls % self.terms.every:
            return model
        if self.terms.participation < 1 and self._rng.random() >= self.terms.participation:
            self.events.emit(events.Skipped(client=self.client, step=self._calls))
            return model
        try:
            result = self._share(model, said)
        except StoreError as error:
            if not self.trains_on_alone:
                raise
            self.events.emit(events.Offline(client=self.client, reason=str(error)))
            return model
        return model if result is None else load(model, result)

    def _share(self, model: Model, said: Said) -> dict[str, NDArray[Any]] | None:
        params = shared_params(model, self.terms.share)
        signature = self._agree(Signature.of(params))
        flat = signature.pack(params)
        # a model on an accelerator was copied to get here, and once is enough
        del params
        check_own(signature, flat, self.limit)

        def renew() -> None:
            signature.pack(shared_params(model, self.terms.share), into=flat)

        result = self._exchange(Own(signature, flat, renew), said)
        return None if result is None else signature.unpack(result)

    def pull(self, model: M) -> M:
        """Load what the federation as a whole has arrived at, sharing nothing.

        What is loaded counts as taken in: the next step averages in what is newer.
        Before anybody shared anything those are the params that everybody starts from, if a
        member joined with `model=`; otherwise the model stays as it is.
        """
        self._check_open()
        signature = self._agree(Signature.of(shared_params(model, self.terms.share)))
        result = self._collective(signature)
        if result is None:
            result = self._initial(signature)
        if result is None:
            return model
        self.state.start_from(result)
        return load(model, signature.unpack(result))

    def start(self, model: M) -> M:
        """Load the federation's params, or make these the ones that everybody starts from.

        A module's tensors, or a dict's, are changed in place; arrays come back in a new dict.
        """
        params = shared_params(model, self.terms.share)
        signature = self._agree(Signature.of(params))
        result = self._collective(signature)
        if result is None:
            result = self._initial(signature)
        if result is None:
            flat = signature.pack(params)
            check_own(signature, flat, self.limit)
            self._put_once(keys.INITIAL, codec.encode(signature, flat, {"client": self.client}))
            result = self._initial(signature)
        if result is None:
            return model
        self.state.start_from(result)
        return load(model, signature.unpack(result), in_place=True)

    def attach(self, model: Model, optimizer: Optimizer, examples: int) -> None:
        """Call `step` after each of the optimizer's steps (and so, federate every n of them)."""

        def stepped(*_: object) -> None:
            reported, valuation = self._reported, self._valued
            self.step(model, examples=examples, metrics=reported, valuation=valuation)

        self._hook = optimizer.register_step_post_hook(stepped)

    def report(self, *, valuation: float | None = None, **metrics: float) -> None:
        """What is to go with the next updates, where an optimizer's hook makes the steps."""
        self._reported.update(metrics)
        self._valued = self._valued if valuation is None else finite_valuation(valuation)

    def close(self) -> None:
        """Leave. What was shared stays in the store: join again under the same name to go on."""
        if self._closed:
            return
        self._closed = True
        if self._hook is not None:
            self._hook.remove()
        self.events.emit(events.Left(client=self.client, steps=self._calls))
        self.store.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_life(self, lives: dict[str, Incarnation]) -> Incarnation:
        """Rank above all former lives under this name, and say so before anything else.

        A former life's last write may still be on its way. It announced itself before it wrote
        anything, so what it wrote ranks below us wherever it lands.
        """
        incarnation = Incarnation.after(lives.values())
        said = json.dumps({"hubless": __version__, "mode": self.mode}).encode()
        self.store.put(keys.life_key(self.client, incarnation), [said])
        self._discard([key for key in lives if key.startswith(keys.MEMBERS)])
        return incarnation

    @abstractmethod
    def _exchange(self, own: Own, said: Said) -> Flat | None:
        """Share these params; what came back, or None where the member goes on with its own."""

    @abstractmethod
    def _collective(self, signature: Signature) -> Flat | None:
        """What the federation as a whole has arrived at, or None before there is anything."""

    def _agree(self, mine: Signature) -> Signature:
        """Hold this model against the federation's, which its first member fixed."""
        if self.signature != mine:
            agreement = self._agreement(mine)
            if self.signature is None:
                self._put_once(keys.FEDERATION, [agreement.to_bytes()])
            found = read_agreement(self.store)
            found.hold(agreement, self.store.url)
            self.signature, self.limit = found.signature, found.limit
        return self.signature

    def _agreement(self, signature: Signature) -> Agreement:
        """What this member would have everybody agree on."""
        return Agreement(self.mode, signature, self.terms.limit)

    def _put_once(self, key: str, parts: Sequence[Bytes]) -> None:
        """Write an object that the first member to come decides."""
        try:
            self.store.put(key, parts, create=True)
        except AlreadyExists:
            return
        except Unsupported:
            # two first members may then both write; the signature in each key keeps them apart
            if not any(entry.key == key for entry in self.store.list("")):
                self.store.put(key, parts)

    def _initial(self, signature: Signature) -> Flat | None:
        """The params that everybody starts from, if any member gave some."""
        entry = next((e for e in self.store.list("") if e.key == keys.INITIAL), None)
        if entry is None:
            return None
        stored = Stored(
            self.store, entry.key, entry.size, "first member", signature, limit=self.limit
        )
        return np.array(stored.checked(range(len(signature.blocks))))

    def _hidden(self, said: Said) -> Said:
        """The same as it may be published: once for each step, because it costs each time."""
        if self._reporter is None:
            return said
        return replace(said, valuation=self._reporter.report(said.valuation))

    def _post(self, folder: str, own: Own, said: Said) -> Posted:
        """Put an update into the store; returns once that is acknowledged."""
        posted = Posted(
            folder,
            self.client,
            self.sequence,
            self.incarnation,
            said.examples,
            self.version,
            own.signature.digest,
            valuation=said.valuation,
        )
        # a number is used up even if the put fails: the object may be there all the same
        self.sequence += 1
        header = {
            "client": self.client,
            "sequence": str(posted.sequence),
            "examples": str(said.examples),
            "version": str(self.version),
            "metrics": json.dumps(dict(said.metrics)),
        }
        if said.valuation is not None:
            header["valuation"] = keys.exactly(said.valuation)
        parts = codec.encode(own.signature, own.flat, header)
        if len(parts[0]) > codec.header_limit(own.signature):
            raise ParamsError(
                f"metrics take {len(parts[0])} bytes, which is more than peers accept: share fewer"
            )
        self.store.put(posted.key, parts)
        self.events.emit(
            events.Pushed(
                client=self.client,
                key=posted.key,
                sequence=posted.sequence,
                examples=said.examples,
                bytes=sum(memoryview(part).nbytes for part in parts),
                metrics=said.metrics,
                valuation=said.valuation,
                epsilon=None if self._reporter is None else self._reporter.epsilon,
            )
        )
        return posted

    def _check_sole(self, listed: Sequence[Posted]) -> None:
        """Raise where a later process goes by this member's name."""
        others = [p for p in listed if p.client == self.client and p.incarnation > self.incarnation]
        if others:
            raise NameTaken(
                f"another live process joined as {self.client!r} after this one (it wrote "
                f"{others[-1].key}): give every process a client name of its own. This one stops "
                "sharing; its model is untouched"
            )

    def _discard(self, keys: Sequence[str]) -> None:
        """Delete what is ours and superseded; what cannot be deleted now is tried again later."""
        if not keys:
            return
        try:
            self.store.store.delete(keys)
        except StoreError as error:
            events.logger.debug("could not collect %s yet: %s", keys, error)

    def _refuse(self, refusal: Refused) -> None:
        self.events.emit(
            events.RefusedUpdate(
                client=self.client, peer=refusal.client, key=refusal.key, reason=refusal.reason
            )
        )

    def _check_open(self) -> None:
        if self._closed:
            raise FederationError("this federation was closed; join again to go on")
