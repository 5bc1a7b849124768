"""Finding out what a store really does, by doing it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from hubless.errors import AlreadyExists, StoreError, Unsupported
from hubless.federate.keys import probe_key
from hubless.store.base import Store

_RACERS = 8


def honours_create(store: Store, client: str = "check") -> tuple[bool, str]:
    """Whether create-if-absent has one winner, also in a race; and if not, what happened instead.

    A probe in sequence is not enough: some servers pass it and let all of several racers win. It
    goes by the client's name, because a member may have no right to write anywhere else.
    """
    key = probe_key(client)
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
        # not everybody who may write may also delete
        with contextlib.suppress(StoreError):
            _remove(store, [key, f"{key}-race"])


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


@dataclass(frozen=True)
class Findings:
    """What a store can do: seconds are medians, rates are bytes per second."""

    can_write: bool = False
    can_read: bool = False
    can_list: bool = False
    can_delete: bool = False
    creates_if_absent: bool = False
    create_note: str = ""
    put_seconds: float = 0.0
    get_seconds: float = 0.0
    list_seconds: float = 0.0
    upload_rate: float = 0.0
    download_rate: float = 0.0
    trouble: str = ""

    @property
    def usable(self) -> bool:
        """Good enough for asynchronous mode."""
        return self.can_write and self.can_read and self.can_list


def examine(store: Store, size: int = 16 << 20, tries: int = 5, client: str = "check") -> Findings:
    """Try everything a federation needs on a store, clean up, and say how it went."""
    prefix = f"{probe_key(client)}/"
    keys = [f"{prefix}{i}" for i in range(tries)]
    large = f"{prefix}large"
    findings, is_clean = Findings(), False
    try:
        puts = [_timed(partial(store.put, key, [b"hubless"])) for key in keys]
        findings = replace(findings, can_write=True, put_seconds=median(puts))
        gets = [_timed(partial(store.get, key)) for key in keys]
        findings = replace(findings, can_read=True, get_seconds=median(gets))
        lists = [_timed(lambda: store.list(prefix)) for _ in range(tries)]
        complete = [entry.key for entry in store.list(prefix)] == keys
        findings = replace(findings, can_list=complete, list_seconds=median(lists))
        body = secrets.token_bytes(1 << 20)
        up = _timed(lambda: store.put(large, [body] * (size >> 20)))
        down = _timed(lambda: store.read(large, 0, size))
        findings = replace(findings, upload_rate=size / up, download_rate=size / down)
        honoured, note = honours_create(store, client)
        findings = replace(findings, creates_if_absent=honoured, create_note=note)
        _remove(store, [*keys, large])
        is_clean = not store.list(prefix)
        findings = replace(findings, can_delete=is_clean)
    except StoreError as error:
        findings = replace(findings, trouble=str(error))
    finally:
        # whoever interrupts this leaves nothing behind, either
        if not is_clean:
            with contextlib.suppress(StoreError):
                _remove(store, [*keys, large])
    return findings


def _remove(store: Store, keys: list[str]) -> None:
    """Delete these, once more where that fails or is interrupted."""
    try:
        store.delete(keys)
    except BaseException:
        with contextlib.suppress(StoreError):
            store.delete(keys)
        raise


def _timed(operation: Callable[[], object]) -> float:
    started = time.perf_counter()
    operation()
    return max(time.perf_counter() - started, 1e-9)
