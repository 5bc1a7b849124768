"""Where a module's arrays lie in one flat vector, which is what strategies average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hubless.errors import TaskError


@dataclass(frozen=True)
class Place:
    """One array's place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    trained: bool


@dataclass(frozen=True)
class Layout:
    """Trainable params first, then floating buffers; frozen params stay where they are.

    Counters such as BatchNorm's number of batches are not shared in a simulation: no client's
    training depends on them.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> [(p.name, p.start, p.stop) for p in layout.places]
    [('weight', 0, 6), ('bias', 6, 8)]
    """

    places: tuple[Place, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module's arrays."""
        places: list[Place] = []
        at = 0
        named: list[tuple[str, Tensor, bool]] = [
            (name, p, True) for name, p in module.named_parameters() if p.requires_grad
        ]
        named += [
            (name, b, False) for name, b in module.named_buffers() if _is_shared(module, name, b)
        ]
        for name, array, trained in named:
            if array.dtype != torch.float32 and trained:
                raise TaskError(
                    f"parameter {name!r} is {array.dtype}, and simulations keep params in float32: "
                    'use module.float(), and precision="bfloat16" in the recipe for speed'
                )
            places.append(Place(name, tuple(array.shape), at, at + array.numel(), trained))
            at += array.numel()
        if not any(place.trained for place in places):
            raise TaskError("the module has no parameters that require a gradient")
        return cls(tuple(places))

    @property
    def size(self) -> int:
        """How many numbers there are in all."""
        return self.places[-1].stop

    @property
    def trained(self) -> tuple[Place, ...]:
        """The places of what is trained."""
        return tuple(place for place in self.places if place.trained)

    @property
    def has_buffers(self) -> bool:
        """Whether the module changes arrays by itself while it trains."""
        return not all(place.trained for place in self.places)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each array as a view of the flat vector."""
        return [flat[p.start : p.stop].view(p.shape) for p in self.places]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The same, by name."""
        return dict(zip((p.name for p in self.places), self.views(flat), strict=True))

    def flatten(self, module: nn.Module) -> Tensor:
        """A copy of the module's arrays as one flat vector."""
        return self.pack({**dict(module.named_parameters()), **dict(module.named_buffers())})

    def pack(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """A copy of these arrays as one flat vector."""
        with torch.no_grad():
            parts = [arrays[p.name].detach().float().reshape(-1).cpu() for p in self.places]
            return torch.cat(parts)

    def load(self, module: nn.Module, flat: Tensor) -> None:
        """Set the module's arrays to those of the flat vector."""
        arrays = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for place, values in zip(self.places, self.views(flat), strict=True):
                arrays[place.name].copy_(values)


def _is_shared(module: nn.Module, name: str, buffer: Tensor) -> bool:
    """Whether a buffer is part of the model's state, rather than a constant kept for speed."""
    owner, _, leaf = name.rpartition(".")
    return (
        buffer.is_floating_point()
        and leaf not in module.get_submodule(owner)._non_persistent_buffers_set
    )
