"""Finding out what a store does: what it says, and what it leaves behind, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from hubless.errors import Denied, StoreError
from hubless.federate.outside.probe import examine, honours_create
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from hubless.testing.faults import Faulty


def _raising(operation: int, error: BaseException) -> Iterator[BaseException | None]:
    for number in count():
        yield error if number == operation else None


class _Struck(Faulty):
    """Raises at one of its operations, before it is done."""

    def __init__(self, store: MemoryStore | FolderStore, operation: int, error: BaseException):
        import numpy as np

        strikes = _raising(operation, error)
        self.is_struck = False

        def before(operation: str, key: str) -> None:
            if (strike := next(strikes)) is not None:
                self.is_struck = True
                raise strike

        super().__init__(store, np.random.default_rng(0), error=0, lost=0, before=before)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreError("gone"), Denied("no")])
def test_a_check_leaves_nothing_behind_wherever_it_is_ended(error: BaseException) -> None:
    for operation in count():
        store = _Struck(MemoryStore(), operation, error)
        try:
            examine(store, size=1 << 20, tries=2)
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
        assert store.store.list("") == [], operation
        if not store.is_struck:
            break
    assert operation > 15


def test_asking_who_wins_a_race_leaves_nothing_behind_wherever_it_is_ended(tmp_path: Path) -> None:
    for operation in count():
        store = _Struck(FolderStore(tmp_path / str(operation)), operation, KeyboardInterrupt())
        try:
            honours_create(store)
        except KeyboardInterrupt:
            assert store.store.list("") == [], operation
        if not store.is_struck:
            break
    assert operation > 8


def test_what_may_not_be_removed_is_said() -> None:
    class Kept(MemoryStore):
        def delete(self, keys: object) -> NoReturn:
            raise Denied("no")

    found = examine(Kept(), size=1 << 20, tries=2)
    assert not found.can_delete
    assert found.trouble == "no"
    assert found.usable
