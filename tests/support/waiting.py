"""Waiting for what others bring about, however long the machine takes."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def wait_at_most(joined: Any, seconds: float) -> float:
    """Give a member another deadline; what it was before."""
    mode = joined._mode
    before: float = mode.deadline
    mode.deadline = mode._open._deadline.ceiling = seconds
    return before
