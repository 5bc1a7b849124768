"""Federating a torch script that knows nothing of it, from the steps of its first optimizer.

Nothing here imports torch: the hook is set when the script does, so that what a script has to
settle before importing torch still counts.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hubless.errors import HublessError
from hubless.federate.federation import Federation
from hubless.params import is_tensor

_OPTIMIZERS = "torch.optim.optimizer"
_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
"""Modules around a model that put a word before its names, which other sites may do without."""


class FirstOptimizer:
    """Shares what the first optimizer to take a step trains, at every n-th step that trains it.

    A script may make its optimizer anew for the same model: its steps count as well. The first step
    is where the model is known to be complete: the federation's params are loaded after it, or the
    model's own become those that everybody starts from. Call it after every step of any optimizer;
    `say` is told what the script's owner should know.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        every: int,
        examples: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.federation = federation
        self.every, self.examples = every, examples
        self.optimizer: Any = None
        self.model: Trained | None = None
        self.failure: HublessError | None = None
        self.steps = 0
        self._shared_at = 0
        self._others_said = False
        self._say = say
        self._process = os.getpid()

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
                self._leave_alone(optimizer)
        except HublessError as error:
            # a script may well go on after any error: then it goes on alone
            self.failure = error
            raise

    def finish(self) -> None:
        """Share what was trained since the last time, now that the script is over."""
        if self.failure is not None:
            raise self.failure
        if self.model is not None and self.steps > self._shared_at:
            self._share(self.model)

    def _begin(self, optimizer: Any) -> None:
        model = trained_by(optimizer)
        count, named = len(model.names), "by their names" if model.module else "by their places"
        self._say(f"federates {count} tensors, {named}, at every {self.every} steps")
        self.federation.start(model)
        self.optimizer, self.model = optimizer, model
        self.steps = 1

    def _trains(self, optimizer: Any, model: Trained) -> bool:
        """Whether this is the model's optimizer, or one that the script made in its place."""
        if optimizer is self.optimizer:
            return True
        mine = all(id(param) in model.trained for param in params_of(optimizer))
        if mine:
            self.optimizer = optimizer
        return mine

    def _share(self, model: Trained) -> None:
        self.federation.step(model, examples=self.examples)
        self._shared_at = self.steps

    def _leave_alone(self, optimizer: Any) -> None:
        if self._others_said:
            return
        self._others_said = True
        self._say(
            f"another optimizer ({type(optimizer).__name__}) takes steps, too: what only it trains "
            "is left alone, as the first one to take a step was taken for the model's"
        )


class Trained:
    """What an optimizer trains, with the buffers around it, by name: a model to be federated.

    Without a module that owns all of it, tensors are named by their group and place.
    """

    def __init__(self, optimizer: Any, module: Any = None) -> None:
        self.module = module
        groups = enumerate(optimizer.param_groups)
        places = {f"group{g}.{i}": p for g, group in groups for i, p in enumerate(group["params"])}
        self.trained = {id(param) for param in places.values()}
        self._places = {} if module is not None else places
        self.names = tuple(places if module is None else _names(module, self.trained))

    def state_dict(self) -> Mapping[str, Any]:
        """The tensors as they are now: a buffer may be another tensor after each forward pass."""
        state = self._places if self.module is None else self.module.state_dict()
        return {name: state[name] for name in self.names}


def trained_by(optimizer: Any) -> Trained:
    """What an optimizer trains, by the names that its owner gives it.

    That is the outermost module with exactly these params, or else the one with the fewest others,
    which are left out.
    """
    trained = {id(param) for param in params_of(optimizer)}
    owners = [(module, params) for module, params in _modules() if trained <= params]
    exact = [module for module, params in owners if params == trained]
    if exact:
        inner = {id(part) for module in exact for part in module.modules() if part is not module}
        choice = [module for module in exact if id(module) not in inner]
    else:
        fewest = min((len(params) for _, params in owners), default=0)
        choice = [module for module, params in owners if len(params) == fewest]
    found = [Trained(optimizer, module) for module in choice]
    whole = [model for model in found if _holds_all(model)]
    # whichever of equals is found first, every site shall choose the same
    return min(whole, key=lambda m: (-len(m.names), m.names), default=Trained(optimizer))


def params_of(optimizer: Any) -> Iterator[Any]:
    """Every tensor that an optimizer was given."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _modules() -> Iterator[tuple[Any, set[int]]]:
    """Every module there is in this process, with which params it has."""
    kind = sys.modules["torch"].nn.Module
    for item in gc.get_objects():
        # asking an object for its class may run its code, which asking for its type does not
        if issubclass(type(item), kind) and type(item).__name__ not in _WRAPPERS:
            try:
                yield item, {id(param) for param in item.parameters()}
            except Exception:
                # one that is not complete, or not what it pretends to be
                continue


def _names(module: Any, trained: set[int]) -> Iterator[str]:
    """Which entries of a module's state are trained, or buffers; of tied params the first."""
    parameter = sys.modules["torch"].nn.Parameter
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        frozen = isinstance(tensor, parameter) and id(tensor) not in trained
        if is_tensor(tensor) and not frozen and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name


def _holds_all(model: Trained) -> bool:
    state = model.module.state_dict(keep_vars=True)
    return model.trained <= {id(state[name]) for name in model.names}


@contextmanager
def after_steps(hook: Callable[..., None]) -> Iterator[None]:
    """Call the hook after each step of any torch optimizer, from when torch is imported on."""
    handles: list[Any] = []

    def register(module: ModuleType) -> None:
        handles.append(module.register_optimizer_step_post_hook(hook))

    finder = _Awaited(_OPTIMIZERS, register)
    if _OPTIMIZERS in sys.modules:
        register(sys.modules[_OPTIMIZERS])
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.withdraw()
        for handle in handles:
            handle.remove()


class _Awaited(MetaPathFinder):
    """Calls back once a module has been imported, by whoever else finds it."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        self.withdraw()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        vars(spec.loader)["exec_module"] = executed
        return spec

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
