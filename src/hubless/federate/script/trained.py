"""What an optimizer trains, found from the optimizer alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hubless.federate.model import is_wrapper, own_tensors, same_memory, to_share


class TrainedModel:
    """What an optimizer trains, with the buffers around it, by name: a model to be federated.

    Without a module that owns all of it, tensors are named by their group and place.
    """

    def __init__(self, optimizer: Any, module: Any = None) -> None:
        self.module = module
        groups = enumerate(optimizer.param_groups)
        places = {f"group{g}.{i}": p for g, group in groups for i, p in enumerate(group["params"])}
        self.trained = asking(optimizer)
        self._places = {} if module is not None else places
        state = self.state_dict()
        self.names = to_share(state, None if module is None else self.trained)
        shared = {same_memory(state[name]) for name in self.names}
        self.is_whole = all(
            same_memory(p) in shared for p in places.values() if id(p) in self.trained
        )

    def state_dict(self) -> Mapping[str, Any]:
        """All tensors as they are now: a buffer may be another one after each forward pass."""
        return self._places if self.module is None else own_tensors(self.module)


def trained_by(optimizer: Any) -> TrainedModel:
    """What an optimizer trains, by the names that its owner gives it.

    That is the outermost module in which exactly these params are trained, or else the one with
    the fewest others, which are left out.
    """
    trained = asking(optimizer)
    owners = [(module, params) for module, params in _modules() if trained <= params.keys()]
    exact = [m for m, params in owners if trained == {i for i, asks in params.items() if asks}]
    if exact:
        inner = {id(part) for module in exact for part in module.modules() if part is not module}
        choice = [module for module in exact if id(module) not in inner]
    else:
        fewest = min((len(params) for _, params in owners), default=0)
        choice = [module for module, params in owners if len(params) == fewest]
    models = [TrainedModel(optimizer, module) for module in choice]
    whole = [model for model in models if model.is_whole]
    # whichever of equals is found first, every site shall choose the same
    return min(whole, key=lambda m: (-len(m.names), m.names), default=TrainedModel(optimizer))


def asking(optimizer: Any) -> set[int]:
    """The ids of an optimizer's params that ask for a gradient, or of all where none does."""
    params = list(params_of(optimizer))
    return {id(p) for p in params if p.requires_grad} or {id(p) for p in params}


def params_of(optimizer: Any) -> Iterator[Any]:
    """Every tensor that an optimizer was given."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _modules() -> Iterator[tuple[Any, dict[int, bool]]]:
    """Every module there is in this process, with its params and whether each is trained."""
    kind = sys.modules["torch"].nn.Module
    for item in gc.get_objects():
        # asking an object for its class may run its code, which asking for its type does not
        if issubclass(type(item), kind) and not is_wrapper(item):
            try:
                yield item, {id(param): param.requires_grad for param in item.parameters()}
            except Exception:
                # one that is not complete, or not what it pretends to be
                continue
