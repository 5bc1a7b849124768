"""A bucket: where a federation meets, and what its server needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hubless.checks import fitting, number
from hubless.errors import StoreError
from hubless.patience import LONGEST, Clock
from hubless.store.base import Store
from hubless.store.opening import open_store
from hubless.store.reliable import Reliable


@dataclass(frozen=True)
class Bucket:
    """Where a federation meets, and how patiently it is asked.

    An address alone says the same with what is usual: `join("s3://bucket/run", ...)`.

    Args:
        url: A folder, `s3://bucket/run`, `gs://...`, `az://...`, or a store of your own.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for its server, such as `{"aws_region": "eu-west-1"}`. They may hold
            secrets, so they are never printed.
        patience: Seconds during which a failing store is tried again.

    >>> Bucket("s3://trials/run-1", options={"aws_secret_access_key": "..."}, patience=20)
    Bucket(url='s3://trials/run-1', endpoint=None, patience=20)
    """

    url: str | Path | Store
    endpoint: str | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False)
    patience: float = 60.0

    def __post_init__(self) -> None:
        number("patience", self.patience, error=StoreError, least=0, most=LONGEST)
        fits = isinstance(self.url, str | Path | Store)
        fitting("url", self.url, fits, "an address, a folder or a store", error=StoreError)
        if isinstance(self.url, Store) and not (self.endpoint is None and self.options is None):
            raise StoreError("endpoint= and options= go with an address, and this is a store")
        options = {} if self.options is None else self.options
        fits = isinstance(options, Mapping) and all(
            isinstance(text, str) for pair in options.items() for text in pair
        )
        if not fits:
            # what they are may be secret
            raise StoreError("options= takes settings by name, each a text")
        if self.endpoint is not None and not isinstance(self.endpoint, str):
            raise StoreError(f"endpoint= is the address of a server, not {self.endpoint!r}")

    @classmethod
    def at(cls, place: str | Path | Store | Bucket) -> Bucket:
        """This place, with what is usual where only its address is given."""
        if isinstance(place, Bucket):
            return place
        fits = isinstance(place, str | Path | Store)
        takes = "an address, a folder, a store or Bucket(address, ...)"
        fitting("where", place, fits, takes, error=StoreError)
        return cls(place)

    def open(self, clock: Clock | None = None) -> Reliable:
        """The store that lies there."""
        url = self.url
        opened = url if isinstance(url, Store) else open_store(url, self.endpoint, self.options)
        return Reliable(opened, self.patience, clock)
