"""Federating a torch script that knows nothing of it, from the steps of its first optimizer.

Nothing here imports torch: the hooks are set when the script does, so that what a script has to
settle before importing torch still counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from hubless.errors import HublessError
from hubless.federate.federation import Federation
from hubless.federate.script.batches import Batches
from hubless.federate.script.imports import once_imported
from hubless.federate.script.saves import Saving, before_saves
from hubless.federate.script.trained import TrainedModel, params_of, trained_by

_OPTIMIZERS = "torch.optim.optimizer"


class FirstOptimizer:
    """Shares what the first optimizer to take a step trains, at every n-th step that trains it.

    A script may make its optimizer anew for the same model: its steps count as well. The first step
    is where the model is known to be complete: the federation's params are loaded after it, or the
    model's own become those that everybody starts from. Call it after every step of any optimizer,
    and `before_save` before anything is saved: then the federation meets as well, so that a file
    holds its model. `say` is told what the script's owner should know.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        every: int,
        examples: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.federation = federation
        self.every, self.examples = every, examples
        self.optimizer: Any = None
        self.model: TrainedModel | None = None
        self.failure: HublessError | None = None
        self.steps = 0
        self.files: dict[str, bool] = {}
        """The files that the model was saved in, and whether what they hold is the federation's."""
        self._shared_at = self._met_at = 0
        self._unmet: HublessError | None = None
        self._shares = federation.ranks if examples is None else 1
        """As many ranks have seen about as many examples each."""
        self._batches = Batches(None)
        self._others_said = self._uncounted_said = False
        self._say = say
        self._process, self._thread = os.getpid(), 0

    def __call__(self, optimizer: Any, *_: object) -> None:
        # a fork of the script is not this member
        if self.failure is not None or os.getpid() != self._process:
            return
        try:
            if self.model is None:
                self._begin(optimizer)
            elif self._trains(optimizer, self.model):
                self.steps += 1
                if self.steps % self.every == 0:
                    self._share(self.model)
                else:
                    self.federation.catch_up(self.model)
            else:
                self._leave_alone(optimizer)
        except HublessError as error:
            # a script may well go on after any error: then it goes on alone
            self.failure = error
            raise

    def before_save(self, saving: Saving) -> None:
        """Meet before the model is saved; a file is written also where that does not work out."""
        if self.model is None or os.getpid() != self._process:
            return
        copies = self._copies(saving, self.model)
        if not copies and not self._is_the_model(saving, self.model):
            return
        # a thread that saves beside the training must not change what is being trained, and a copy
        # of what the model was before, such as when it was best, stays that
        now = self.model.state_dict()
        is_now = all(_equal(copy, now[name]) for name, copy in copies.items())
        met = is_now and threading.get_ident() == self._thread and self._meet(self.model)
        if met:
            _bring_up_to_date(copies, self.model.state_dict())
        file = saving.file or "a stream"
        self.files.pop(file, None)
        self.files[file] = met

    def finish(self) -> None:
        """Share what was trained since the last time, now that the script is over."""
        if self.federation.together(self._is_due) and self.model is not None:
            self._share(self.model)

    def close(self) -> None:
        """Watch no longer."""
        self._batches.remove()

    def _is_due(self) -> bool:
        if failure := self.failure or self._unmet:
            raise failure
        return self.steps > self._shared_at

    def _begin(self, optimizer: Any) -> None:
        model = trained_by(optimizer)
        named = "names" if model.module else "places"
        what = f"what {type(optimizer).__name__} trains, by its {named}"
        self._say(f"federates {what}, at every {self.every} steps")
        self.federation.start(model)
        self.optimizer, self.model, self._thread = optimizer, model, threading.get_ident()
        if self.examples is None:
            self._batches = Batches(model.module)
        self.steps = 1

    def _trains(self, optimizer: Any, model: TrainedModel) -> bool:
        """Whether this is the model's optimizer, or one that the script made in its place."""
        if optimizer is self.optimizer:
            return True
        mine = all(id(param) in model.trained for param in params_of(optimizer))
        if mine:
            self.optimizer = optimizer
        return mine

    def _share(self, model: TrainedModel) -> None:
        self.federation.step(model, examples=self._examples())
        self._shared_at, self._unmet = self.steps, None

    def _meet(self, model: TrainedModel) -> bool:
        """Load what the federation has arrived at, with what was trained here; whether it worked.

        Nothing new came about where nothing was trained since the last time.
        """
        # only one rank of a site saves: the others catch up when they come to their next step
        alone = self.federation.alone
        if alone is None or self.failure is not None or self._unmet is not None:
            return False
        if self._met_at == self.steps:
            return True
        try:
            if self.steps > self._shared_at:
                alone.meet(model, examples=self._examples() * self._shares)
            else:
                alone.pull(model)
        except HublessError as error:
            self._unmet = error
            self._say(f"what is saved now is this site's own model: {error}")
            return False
        self._shared_at = self._met_at = self.steps
        return True

    def _examples(self) -> int:
        """How many examples this rank has trained on; what is said holds for the whole site."""
        if self.examples is not None:
            return 0 if self.federation.rank else self.examples
        counted = self._batches.take()
        if counted is None and not self._uncounted_said:
            self._uncounted_said = True
            self._say(
                "cannot tell how many examples this site trains on, as its model is not called "
                "with batches: it counts as 1 among the others. Say how many with --examples"
            )
        return counted or 1

    def _is_the_model(self, saving: Saving, model: TrainedModel) -> bool:
        mine = {_storage(tensor) for tensor in model.state_dict().values()}
        return any(_storage(tensor) in mine for _, tensor in saving.tensors())

    def _copies(self, saving: Saving, model: TrainedModel) -> dict[str, Any]:
        """The model's tensors as they lie in other memory, such as on another device, by name."""
        mine = {_storage(tensor) for tensor in model.state_dict().values()}
        others = {name: t for name, t in saving.tensors() if _storage(t) not in mine}
        first = model.names[0]
        before = {name.removesuffix(first) for name in others if name.endswith(first)}
        whole = [start for start in before if all(start + n in others for n in model.names)]
        return {name: others[whole[0] + name] for name in model.names} if whole else {}

    def _leave_alone(self, optimizer: Any) -> None:
        if self._others_said:
            return
        self._others_said = True
        self._say(
            f"another optimizer ({type(optimizer).__name__}) takes steps, too: what only it trains "
            "is left alone, as the first one to take a step was taken for the model's"
        )


def _storage(tensor: Any) -> object:
    """The same for tensors that are, or are parts of, the same memory."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _equal(copy: Any, tensor: Any) -> bool:
    return bool(copy.shape == tensor.shape) and bool((copy == tensor.to(copy)).all())


def _bring_up_to_date(copies: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, copy in copies.items():
        copy.detach().copy_(state[name].detach())


@contextmanager
def watching(hook: FirstOptimizer) -> Iterator[None]:
    """Let the hook know of a script's steps and saves."""
    with after_steps(hook), before_saves(hook.before_save):
        try:
            yield
        finally:
            hook.close()


@contextmanager
def after_steps(hook: Callable[..., None]) -> Iterator[None]:
    """Call the hook after each step of any torch optimizer, from when torch is imported on."""
    handles: list[Any] = []

    def register(module: ModuleType) -> None:
        handles.append(module.register_optimizer_step_post_hook(hook))

    with once_imported(_OPTIMIZERS, register):
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
