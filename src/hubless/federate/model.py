"""What users hand in (named arrays, or a module with a state dict) as params, and back."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from numpy.typing import NDArray

from hubless.errors import ParamsError
from hubless.params import Array, Params, assign, is_tensor, to_numpy


@runtime_checkable
class Module(Protocol):
    """Anything with a state dict whose tensors are the model's own memory, as in torch."""

    def state_dict(self) -> Mapping[str, Any]: ...


Model: TypeAlias = Params | Module
M = TypeVar("M", bound=Model)


def shared_params(model: Model, patterns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays to be shared, by name, without copying where that is possible.

    >>> import numpy as np
    >>> shared_params({"body.w": np.ones(2), "head.w": np.ones(2)}, ["body.*"])
    {'body.w': array([1., 1.])}
    """
    arrays = {
        name: to_numpy(name, array)
        for name, array in _arrays(model).items()
        if patterns is None or any(fnmatch.fnmatchcase(name, p) for p in patterns)
    }
    if not arrays:
        raise ParamsError(
            f"no parameter matches share={list(patterns or [])}; "
            f"there are {', '.join(list(_arrays(model))[:8])}..."
        )
    return arrays


def load(model: M, values: Mapping[str, NDArray[Any]], *, in_place: bool = False) -> M:
    """Put values back: a module is changed in place, named arrays come back as a new dict.

    With `in_place` the tensors in a dict are changed, too, as whoever trains them holds them.
    """
    if isinstance(model, Mapping):
        put = _into if in_place else _like
        return cast(M, {n: put(a, values[n]) if n in values else a for n, a in model.items()})
    arrays = _arrays(model)
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


def _arrays(model: Model) -> dict[str, Array]:
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, Module):
        # a state dict may also carry things that are not arrays, which no average can take in
        return {n: a for n, a in model.state_dict().items() if is_tensor(a)}
    raise ParamsError(
        f"cannot federate a {type(model).__name__}: pass a torch module, or a dict of arrays"
    )
