"""Finding out what a store really does, by doing it."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

from hubless.errors import AlreadyExists, StoreError, Unsupported
from hubless.store.base import Store

_RACERS = 8


def honours_create(store: Store) -> tuple[bool, str]:
    """Whether create-if-absent has one winner, also in a race; and if not, what happened instead.

    A probe in sequence is not enough: some servers pass it and let all of several racers win.
    """
    key = f"probe/{secrets.token_hex(8)}"
    try:
        store.put(key, [b"first"], create=True)
        try:
            store.put(key, [b"second"], create=True)
            return False, "it overwrote an object that was to be created only if absent"
        except AlreadyExists:
            pass
        winners = sum(race(store, f"{key}-race"))
        if winners != 1:
            return False, f"{winners} of {_RACERS} racing writers were each told that they won"
        return True, "one winner, also in a race"
    except Unsupported as error:
        return False, str(error)
    finally:
        store.delete([key, f"{key}-race"])


def race(store: Store, key: str) -> list[bool]:
    """Create one key several times at once; who was told that it won."""

    def attempt(racer: int) -> bool:
        try:
            store.put(key, [f"racer {racer}".encode()], create=True)
            return True
        except AlreadyExists:
            return False
        except Unsupported:
            raise
        except StoreError:
            # some servers answer a lost race with a conflict rather than "exists already"
            return store.get(key) == f"racer {racer}".encode()

    if store.parallel <= 1:
        return [attempt(racer) for racer in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS, thread_name_prefix="hubless-probe") as pool:
        return list(pool.map(attempt, range(_RACERS)))
