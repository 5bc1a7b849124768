"""What users hand in (named arrays, or a module with a state dict) as params, and back."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from numpy.typing import NDArray

from hubless.errors import ParamsError
from hubless.params import Array, Params, assign, is_tensor, to_numpy


@runtime_checkable
class Module(Protocol):
    """Anything with a state dict whose tensors are the model's own memory, as in torch."""

    def state_dict(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Choosy(Module, Protocol):
    """A module that knows itself what of it is shared."""

    names: tuple[str, ...]


Model: TypeAlias = Params | Module
M = TypeVar("M", bound=Model)

_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""Modules around a model that put a word before its names, which other sites may do without."""


def shared_names(model: Model, patterns: Sequence[str] | None = None) -> tuple[str, ...]:
    """What is shared of a model, by name: of a torch module what is trained, and its buffers.

    >>> import numpy as np
    >>> shared_names({"body.w": np.ones(2), "head.w": np.ones(2)}, ["body.*"])
    ('body.w',)
    """
    arrays = arrays_of(model)
    if _is_torch(model):
        sharable = to_share(arrays)
    else:
        sharable = model.names if isinstance(model, Choosy) else tuple(arrays)
    names = tuple(
        name
        for name in sharable
        if patterns is None or any(fnmatch.fnmatchcase(name, p) for p in patterns)
    )
    if not names:
        raise ParamsError(
            f"no parameter matches share={list(patterns or [])}; "
            f"there are {', '.join(sharable[:8])}..."
        )
    return names


def shared_params(model: Model, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, without copying where that is possible."""
    arrays = arrays_of(model)
    if lost := [name for name in names if name not in arrays]:
        raise ParamsError(f"the model has no {lost[0]} any more, which was shared before")
    return {name: to_numpy(name, arrays[name]) for name in names}


def load(model: M, values: Mapping[str, NDArray[Any]], *, in_place: bool = False) -> M:
    """Put values back: a module is changed in place, named arrays come back as a new dict.

    With `in_place` the tensors in a dict are changed, too, as whoever trains them holds them.
    """
    if isinstance(model, Mapping):
        put = _into if in_place else _like
        return cast(M, {n: put(a, values[n]) if n in values else a for n, a in model.items()})
    arrays = arrays_of(model)
    for name, value in values.items():
        assign(cast(Any, arrays[name]), value)
    return model


def is_in_place(model: object) -> bool:
    """Whether loading changes what the caller holds: a module, or tensors by name."""
    if isinstance(model, Mapping):
        return any(is_tensor(array) for array in model.values())
    return isinstance(model, Module)


def _into(array: Array, value: NDArray[Any]) -> Array:
    if not is_tensor(array):
        return value
    assign(cast(Any, array), value)
    return array


def _like(array: Array, value: NDArray[Any]) -> Array:
    if not is_tensor(array):
        return value
    tensor = cast(Any, array)
    fresh = _into(tensor.detach().clone(), value)
    return cast(Array, cast(Any, fresh).requires_grad_(tensor.requires_grad))


def arrays_of(model: Model) -> dict[str, Array]:
    """All arrays of a model by name, shared or not."""
    if isinstance(model, Mapping):
        return dict(model)
    if _is_torch(model):
        return own_tensors(model)
    if isinstance(model, Module):
        # a state dict may also carry things that are not arrays, which no average can take in
        return {n: a for n, a in model.state_dict().items() if is_tensor(a)}
    raise ParamsError(
        f"cannot federate a {type(model).__name__}: pass a torch module, or a dict of arrays"
    )


def own_tensors(module: Any) -> dict[str, Any]:
    """The params and buffers of a torch module that its state has, by the names of who wrote it.

    What was put around it, or around a part of it, does not change the names.
    """
    module = unwrapped(module)
    memory = {id(t) for t in (*module.parameters(), *module.buffers())}
    around = [
        (f"{place}.{inner}.", f"{place}.")
        for place, part in module.named_modules(remove_duplicate=False)
        if (inner := _WRAPPERS.get(type(part).__name__))
    ]
    tensors = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        # what a module derives from its memory when asked for its state cannot be loaded back
        if id(tensor) in memory:
            for wrapped, plain in reversed(around):
                if name.startswith(wrapped):
                    name = plain + name.removeprefix(wrapped)
            tensors[name] = tensor
    return tensors


def to_share(tensors: Mapping[str, Any], trained: Collection[int] | None = None) -> tuple[str, ...]:
    """Which of a module's tensors are shared: trained ones and buffers; of tied ones the first.

    Trained is what asks for a gradient and, if `trained` is given, is among those by its id. A
    module in which nothing does was not made to be trained, and says nothing by that: all of it is.
    """
    parameter = sys.modules["torch"].nn.Parameter
    asks = {id(t) for t in tensors.values() if t.requires_grad}
    counts = asks if trained is None else asks & set(trained)
    seen: set[object] = set()
    names = []
    for name, tensor in tensors.items():
        frozen = bool(asks) and isinstance(tensor, parameter) and id(tensor) not in counts
        memory = same_memory(tensor)
        if not frozen and memory not in seen:
            seen.add(memory)
            names.append(name)
    return tuple(names)


def unwrapped(module: Any) -> Any:
    """The module that a wrapper, such as for several GPUs or a compiler, was put around."""
    while is_wrapper(module):
        module = getattr(module, _WRAPPERS[type(module).__name__])
    return module


def is_wrapper(module: object) -> bool:
    """Whether this module only passes on to another one."""
    return type(module).__name__ in _WRAPPERS


def same_memory(tensor: Any) -> object:
    """What is equal for tensors that are the same numbers in memory, and only for those."""
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        start = 0
    return (start, tensor.dtype, tensor.shape, tensor.stride()) if start else id(tensor)


def _is_torch(model: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
