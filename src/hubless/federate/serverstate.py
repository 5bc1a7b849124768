"""What a strategy's server optimizer remembers, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.federate.reduction import Flat
from hubless.params import Array
from hubless.signature import Block
from hubless.strategy.base import Slots, Strategy


class ServerState:
    """The current version and the optimizer's slots, for the blocks this member advances."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.step = 0
        self.current: Flat | None = None
        self.slots: dict[int, Slots] = {}

    def advance(self, block: Block, total: Array) -> NDArray[Any]:
        """The next values of one block, given what the updates were reduced to."""
        current = like = np.empty(0, block.dtype)
        if self.strategy.optimizer.needs_current and self.current is not None:
            current = like = self.current[block.start : block.stop].view(block.dtype)
        following, self.slots[block.start] = self.strategy.advance(
            current if len(like) else None,
            total,
            like,
            self.slots.get(block.start, ()),
            self.step,
        )
        return np.asarray(following)

    def arrived(self, result: Flat) -> None:
        """Remember the version that was reached, if the next step needs it."""
        self.step += 1
        if self.strategy.optimizer.needs_current:
            # a copy, because the caller may go on to change its arrays in place
            self.current = result.copy()
