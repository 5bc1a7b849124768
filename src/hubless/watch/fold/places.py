"""Which of several federations a record is of: those in one stream of events are told apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

from hubless.watch.values import Record, text

_MOST = 5000

_Key = TypeVar("_Key", bound=Hashable)


class Places:
    """Numbers federations as they are heard of, from 0, by the url of each client's last join.

    One life told of under two urls is one federation: a folder that was moved, or that others know
    by another path.

    >>> places = Places()
    >>> a = {"event": "joined", "client": "a", "url": "file:///one", "incarnation": "0001ab"}
    >>> b = {"event": "joined", "client": "a", "url": "file:///two", "incarnation": "0001cd"}
    >>> [places.of(a), places.of({"event": "pushed", "client": "a"}), places.of(b)]
    [0, 0, 1]
    """

    def __init__(self) -> None:
        self._urls: OrderedDict[str, int] = OrderedDict()
        self._lives: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._clients: OrderedDict[str, int] = OrderedDict()
        self._heard = self._last = 0

    def of(self, record: Record) -> int:
        """The federation that a record is of; whoever never joined is in the last one joined."""
        client = text(record.get("client"))
        if record["event"] == "joined" and (url := text(record.get("url"), 1000)):
            self._last = self._joined(client, url, text(record.get("incarnation")))
            _keep(self._clients, client, self._last)
        return self._clients.get(client, self._last)

    def _joined(self, client: str, url: str, life: str) -> int:
        place = self._lives.get((client, life)) if life else None
        if place is None:
            place = self._urls.get(url)
        if place is None:
            place = self._heard
            self._heard += 1
        _keep(self._urls, url, place)
        _keep(self._lives, (client, life), place)
        return place


def _keep(places: OrderedDict[_Key, int], key: _Key, place: int) -> None:
    """Only so many: whoever writes the records may never stop."""
    places[key] = place
    places.move_to_end(key)
    if len(places) > _MOST:
        places.popitem(last=False)
