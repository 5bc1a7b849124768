"""A federation as a script sees it: what it calls, in either mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from numpy.typing import NDArray

from hubless import events
from hubless.checks import fitting
from hubless.errors import FederationError, ParamsError, StoreError
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.fold import Flat, Own, check_own
from hubless.federate.member import Member, Report
from hubless.federate.model import (
    M,
    Model,
    arrays_of,
    is_in_place,
    load,
    shared_names,
    shared_params,
)
from hubless.federate.terms import Terms
from hubless.params import finite, whole_examples
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.reliable import Reliable

if TYPE_CHECKING:
    from hubless.federate.script.batches import Batches

T = TypeVar("T")


class Removable(Protocol):
    """A hook that can be taken off again."""

    def remove(self) -> None: ...


class Hookable(Protocol):
    """Anything that calls back after each of its steps, as torch's optimizers do."""

    def register_step_post_hook(self, hook: Callable[..., None], /) -> Removable: ...


class Mode(Protocol):
    """How members meet: what the two modes do differently."""

    name: str
    deadline: float
    """How long a call may wait for others."""
    trains_on_alone: bool
    """Whether a member goes on by itself while the store is out of reach."""
    ends_alike: bool
    """Whether all come back from an exchange with the same params."""

    def agreement(self, signature: Signature) -> Agreement:
        """What this member would have everybody agree on."""
        ...

    def exchange(self, own: Own, report: Report) -> Flat | None:
        """Share these params; what came back, or None where the member goes on with its own.

        What came back is the caller's, and may lie where its own params did.
        """
        ...

    def collective(self, signature: Signature) -> Flat | None:
        """What the federation as a whole has arrived at, to go on from there.

        Before anybody shared anything: the params that everybody starts from, if there are any.
        """
        ...


class Federation:
    """One member's end of a federation; made by `hubless.join`.

    The end of a `with` block shares a last time, loads what all have arrived at, and leaves.
    """

    rank: int = 0
    ranks: int = 1
    """Which of how many processes of its site this one is."""

    def __init__(self, member: Member, mode: Mode) -> None:
        self._begin(member.terms)
        self.member, self._mode = member, mode
        entries = member.store.list("")
        if any(entry.key == keys.FEDERATION for entry in entries):
            agreed = read_agreement(member.store)
            agreed.hold(mode.agreement(agreed.signature), member.store.url)
        member.begin(entries, mode.name)
        who = member.terms.participation
        self._draws = who and who.draws(self.client, member.incarnation.count)

    def _begin(self, terms: Terms) -> None:
        self.terms = terms
        self.loads = 0
        """So often params were loaded."""
        self._reported: dict[str, float] = {}
        self._valued: float | None = None
        self._hook: Removable | None = None
        self._closed = False
        self._model: Model | None = None
        self._names: tuple[str, ...] = ()
        self._named: Model | None = None
        self._examples: int | None = None
        self._batches: Batches | None = None
        self._shared = ""

    @property
    def alone(self) -> Federation | None:
        """What this process can do by itself, without other ranks of its site."""
        return self

    @property
    def client(self) -> str:
        """This member's name."""
        return self.member.client

    @property
    def mode(self) -> str:
        """`async` where nobody waits, `sync` in rounds."""
        return self._mode.name

    @property
    def store(self) -> Reliable:
        """Where members meet."""
        return self.member.store

    @property
    def version(self) -> int:
        """How far this member is: one more than the newest version that it took in."""
        return self.member.version

    @property
    def resumed(self) -> bool:
        """Whether this name had been here before."""
        return self.member.resumed

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
        `every` or `who` set at join, a call may leave the model as it is.
        `valuation` is what training this member is worth, for selectors that go by it.
        """
        self._check_open()
        report = self._report_of(examples, metrics, valuation)
        self._model, self._examples = model, report.examples
        return self._turn(model, lambda: report)

    def pull(self, model: M) -> M:
        """Load what the federation as a whole has arrived at, sharing nothing.

        What is loaded counts as taken in: the next step averages in what is newer.
        Before anybody shared anything those are the params that everybody starts from, if a
        member joined with `model=`; otherwise the model stays as it is.
        """
        self._check_open()
        signature = self._agree(Signature.of(self._params(model)))
        with self.member.call(self._mode.deadline):
            result = self._mode.collective(signature)
        if result is None:
            return model
        return self._load(model, signature, result)

    def start(self, model: M) -> M:
        """Load the federation's params, or make these the ones that everybody starts from.

        A module's tensors, or a dict's, are changed in place; arrays come back in a new dict.
        """
        params = self._params(model)
        signature = self._agree(Signature.of(params))
        with self.member.call(self._mode.deadline):
            result = self._mode.collective(signature)
            # what a round steps from must not change once somebody has closed it
            is_begun = self.mode == "sync" and keys.parse_listing(self.store.list("")).planned
            if result is None and not is_begun:
                flat = signature.pack(params)
                check_own(signature, flat, self.member.limit)
                parts = codec.encode(signature, flat, {"client": self.client})
                self.member.put_once(keys.INITIAL, parts)
                result = self._mode.collective(signature)
        if result is None:
            return model
        return self._load(model, signature, result, in_place=True)

    def meet(
        self,
        model: M,
        *,
        examples: int | None = None,
        metrics: Mapping[str, float] | None = None,
        valuation: float | None = None,
    ) -> M:
        """Share what was trained since the last time, and load what all have arrived at together.

        So what is saved now is the federation's model. Nothing is shared where nothing was trained;
        `every` and `who` do not matter. What is not said is as it was the last time.
        """
        self._check_open()
        arrived = False
        if self._changed(model):
            counted = self._count() if examples is None else examples
            report = self._report_of(
                counted,
                self._reported if metrics is None else metrics,
                self._valued if valuation is None else valuation,
            )
            self._model, self._examples = model, report.examples
            self.member.calls += 1
            model, arrived = self._share(model, report)
        return model if arrived and self._mode.ends_alike else self.pull(model)

    def finish(
        self,
        model: M | None = None,
        *,
        examples: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> M:
        """Share a last time, load what the federation has arrived at, and leave.

        So a script ends with the federation's model, and the others do not wait for it any more.
        Nothing is shared where nothing was trained since the last time. The end of a `with` block
        does this for a module, or tensors, that a call before was given.
        """
        self._check_open()
        model = self._model_or(model)
        try:
            model = self.meet(model, examples=examples, metrics=metrics)
        except StoreError as error:
            if not self._mode.trains_on_alone:
                raise
            self.member.emit(events.Offline(client=self.client, reason=str(error)))
        self.close()
        return model

    def together(self, decide: Callable[[], T]) -> T:
        """What the first rank of this site decides, or its error, for every rank."""
        return decide()

    def catch_up(self, model: M) -> M:
        """Load what the first rank of this site has loaded by itself meanwhile."""
        return model

    def attach(self, model: Model, optimizer: Hookable, examples: int | None) -> None:
        """Call `step` after each of the optimizer's steps (and so, federate every n of them).

        Without `examples` they are counted from the batches that the model is called with.
        """

        def stepped(*_: object) -> None:
            self._check_open()
            self._turn(model, self._report_so_far)

        self._model = model
        if examples is None:
            from hubless.federate.script.batches import Batches

            self._batches = Batches(model)
        else:
            self._examples = examples
        self._hook = optimizer.register_step_post_hook(stepped)

    def report(self, *, valuation: float | None = None, **metrics: float) -> None:
        """What is to go with the next updates, where an optimizer's hook makes the steps."""
        self._reported.update(metrics)
        self._valued = self._valued if valuation is None else finite(valuation)

    def close(self) -> None:
        """Leave. What was shared stays in the store: join again under the same name to go on."""
        if self._closed:
            return
        self._closed = True
        for hook in (self._hook, self._batches):
            if hook is not None:
                hook.remove()
        self._leave()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._closed and is_in_place(self._model):
                self.finish(self._model)
        finally:
            self.close()

    def _leave(self) -> None:
        self.member.leave()
        self.store.close()

    def _turn(self, model: M, report: Callable[[], Report]) -> M:
        self.member.calls += 1
        return model if self.member.calls % self.terms.every else self.take_part(model, report)

    def take_part(self, model: M, report: Callable[[], Report]) -> M:
        """Share and load, unless this member sits this one out."""
        who = self.terms.participation
        if who and self._draws and self._draws.random() >= who.probability:
            self.member.emit(events.Skipped(client=self.client, step=self.member.calls))
            return model
        return self._share(model, report())[0]

    def _share(self, model: M, report: Report) -> tuple[M, bool]:
        """Exchange params with the others, and whether something came of it that was loaded."""
        try:
            with self.member.call(self._mode.deadline):
                params = self._params(model)
                signature = self._agree(Signature.of(params))
                flat = signature.pack(params)
                # a model on an accelerator was copied to get here, and once is enough
                del params
                check_own(signature, flat, self.member.limit)

                def renew() -> None:
                    signature.pack(self._params(model), into=flat)

                result = self._mode.exchange(Own(signature, flat, renew), report)
        except StoreError as error:
            if not self._mode.trains_on_alone:
                raise
            self.member.emit(events.Offline(client=self.client, reason=str(error)))
            return model, False
        if result is None:
            self._shared = codec.digest(flat.data)
            return model, False
        return self._load(model, signature, result), True

    def _load(self, model: M, signature: Signature, result: Flat, *, in_place: bool = False) -> M:
        self.loads += 1
        self._shared = codec.digest(result.data)
        return load(model, signature.unpack(result), in_place=in_place)

    def _changed(self, model: Model) -> bool:
        """Whether the model is another than what was shared or loaded last."""
        params = self._params(model)
        return codec.digest(Signature.of(params).pack(params).data) != self._shared

    def _params(self, model: Model) -> dict[str, NDArray[Any]]:
        """What is shared of a model: of a module always the same, whatever is frozen later."""
        if self._named is not model or isinstance(model, Mapping):
            self._names = shared_names(model, self.terms.share)
            if self._named is None:
                self._tell(model)
            self._named = model
        return shared_params(model, self._names)

    def _tell(self, model: Model) -> None:
        shared = shared_params(model, self._names)
        self.member.emit(
            events.Sharing(
                client=self.client,
                arrays=len(shared),
                bytes=sum(array.nbytes for array in shared.values()),
                left_out=len(arrays_of(model)) - len(shared),
            )
        )

    def _agree(self, mine: Signature) -> Signature:
        return self.member.agree(mine, self._mode.agreement)

    def _report_so_far(self) -> Report:
        return self._report_of(self._count(), self._reported, self._valued)

    def _count(self) -> int:
        """How many examples what is shared now stands for, where nobody says so."""
        counted = self._examples if self._batches is None else self._batches.take()
        if counted is None:
            raise ParamsError(
                "say with examples= how many examples this site trains on: nobody did before, and "
                "a torch module was not called with batches that could be counted"
            )
        return counted

    def _report_of(
        self, examples: int, metrics: Mapping[str, float] | None, valuation: float | None
    ) -> Report:
        takes = "numbers by name, such as {'loss': 0.5}"
        fitting("metrics", metrics, isinstance(metrics or {}, Mapping), takes, error=ParamsError)
        noted = {name: float(value) for name, value in (metrics or {}).items()}
        if valuation is not None:
            valuation = finite(valuation)
        selection = self.terms.selection
        if selection is not None and selection.by_value and valuation is None:
            raise ParamsError(
                f"{selection.selector!r} goes by what training each member is worth: say so with "
                "step(..., valuation=...), or federation.report(valuation=...) under optimizer="
            )
        return Report(whole_examples(examples), noted, valuation)

    def _model_or(self, model: M | None) -> M:
        model = cast(M, self._model) if model is None else model
        if model is None:
            raise FederationError("finish(model) needs the model, as no call before was given one")
        return model

    def _check_open(self) -> None:
        if self._closed:
            raise FederationError("this federation was closed; join again to go on")
