"""What a strategy's server optimizer steps from, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.federate.fold.source import Flat
from hubless.params import Array
from hubless.signature import Block
from hubless.strategy.base import Slots, Strategy


class ServerState:
    """The version a member is at, and the optimizer's slots by the first byte of each block."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.step = 0
        self.current: Flat | None = None
        self.slots: dict[int, Slots] = {}

    def advance(self, block: Block, total: Array) -> tuple[NDArray[Any], Slots]:
        """One block's next values and slots, given what the updates were reduced to.

        Changes nothing: a reduction may fail half way and be started again.
        """
        current = None
        if self.strategy.optimizer.needs_current and self.current is not None:
            current = self.current[block.start : block.stop].view(block.dtype)
        following, slots = self.strategy.advance(
            current,
            total,
            np.empty(0, block.dtype),
            self.slots.get(block.start, ()),
            self.step,
        )
        return np.asarray(following), slots

    def arrive(self, version: Flat, slots: Mapping[int, Slots]) -> None:
        """Have taken a step to this version."""
        self.step += 1
        self.slots.update(slots)
        self.start_from(version)

    def start_from(self, version: Flat) -> None:
        """Be at this version, however it was come by."""
        if self.strategy.optimizer.needs_current:
            # a copy, because the caller may go on to change its arrays in place
            self.current = version.copy()
