"""A store in a bucket: S3, Google Cloud Storage or Azure Blob, through obstore.

Credentials come from the environment, or from what the cloud tells its own machines (instance or
workload identity); options given by hand win over those.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hubless.errors import (
    AlreadyExists,
    Denied,
    NoObject,
    NotFound,
    StoreError,
    Unsupported,
    WrongSize,
)
from hubless.masked import without
from hubless.store.anykeys import Signer, listed
from hubless.store.base import Bytes, Entries, Entry, Store, check_key, check_prefix, is_key
from hubless.store.credentials import check_address, how_to_give_them, lacks_credentials

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

_PART_BYTES = 8 << 20
_PIECE_BYTES = 5 << 30
_HELD_BYTES = 256 << 20
_TIMEOUT_SECONDS = 300
_SLOWEST_BYTES = 100_000
_process = 0
_ASKED_FOR_CREDENTIALS = (
    "169.254.169.254",
    "metadata.google.internal",
    "/latest/api/token",
    "/latest/meta-data/",
    "performing token request",
)
"""What errors say where the library asked a cloud's metadata service who it is."""
_REFUSED = re.compile(r"status code: 40[13]\b")
"""What errors of a listing say, which the library gives no kind of their own."""
_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "default_headers",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}


class ObjectStore(Store):
    """Objects in a bucket.

    `endpoint` points at a server other than the cloud's own (SeaweedFS, MinIO, Ceph, Azurite);
    `options` are obstore's settings for the store or its HTTP client, such as `region`,
    `access_key_id`, `account_key` or `proxy_url`.
    """

    def __init__(
        self, url: str, endpoint: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        check_address(url)
        _check_bucket(url)
        self.url = url.rstrip("/")
        _check_not_forked(self.url)
        config = {key.lower(): value for key, value in (options or {}).items()}
        if endpoint:
            config["base_url" if url.startswith("gs:") else "endpoint"] = endpoint
        self._named = {**_environment(self.url), **config}
        self._is_checked = False
        self._signer: Signer | None = None
        self._ranges = True
        self._wholes: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._config = config
        self._bucket = _open(self.url, config, _TIMEOUT_SECONDS)
        self._patient = (_TIMEOUT_SECONDS, self._bucket)

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        import obstore

        size = sum(len(memoryview(part).cast("B")) for part in parts)
        if create and size > _PIECE_BYTES:
            raise WrongSize(
                f"cannot create {self.url}/{key}: it has {size} bytes, and what is created only if "
                "it is absent goes up in one piece, of at most 5 GiB. Join without model= (updates "
                "go up in parts), and in sync mode with more members (slices get smaller)",
                key,
            )
        with self._translated(key, writing=True):
            if create or size <= _PART_BYTES:
                # multipart uploads cannot be conditional, so a create-only object goes in one piece
                body = b"".join(parts)
                mode: Any = "create" if create else "overwrite"
                bucket = self._waiting(size)
                obstore.put(bucket, check_key(key), body, mode=mode, use_multipart=False)
            else:
                obstore.put(
                    self._alive(),
                    check_key(key),
                    _pieces(parts),
                    chunk_size=_PART_BYTES,
                    max_concurrency=4,
                )

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        import obstore

        with self._translated(key):
            result = obstore.get(self._alive(), check_key(key))
            if result.meta["size"] > limit:
                size = result.meta["size"]
                raise WrongSize(f"{key} has {size} bytes, more than the {limit} expected", key)
            return bytes(result.bytes())

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        import obstore

        if not self._ranges:
            return self._from_whole(key, start, stop)
        try:
            with self._translated(key):
                body = obstore.get_range(self._alive(), check_key(key), start=start, end=stop)
        except StoreError as error:
            if "non-partial response" not in str(error):
                raise
            self._ranges = False
            return self._from_whole(key, start, stop)
        view = memoryview(body)
        if len(view) != stop - start:
            raise WrongSize(f"{key} ends at byte {start + len(view)}, before {stop}", key)
        return view

    def list(self, prefix: str) -> list[Entry]:
        import obstore

        check_prefix(prefix)
        if self._signer is None:
            try:
                with self._translated(prefix):
                    objects = obstore.list(self._alive(), prefix or None, chunk_size=1000).collect()
                    entries = (
                        Entry(m["path"], m["size"], m["last_modified"].timestamp()) for m in objects
                    )
                    return sorted(entries, key=itemgetter(0))
            except StoreError as error:
                if "invalid path" not in str(error):
                    raise
                self._signer = self._signer_for_any_key(prefix, error)
        return self._list_any(self._signer, prefix)

    def _list_any(self, signer: Signer, prefix: str) -> Entries:
        """What is below a prefix of a bucket where somebody has put what the library refuses."""
        folder = "/".join(self.url.split("/")[3:])
        whole = f"{folder}/" if folder else ""
        entries: Entries = []
        for key, size, modified in listed(signer, whole + prefix):
            own = key.removeprefix(whole)
            if is_key(own):
                entries.append(Entry(own, size, modified))
            elif not own.endswith("/") or own.endswith("//"):
                self._pass_over(own, "it is no key that a member writes")
        return sorted(entries, key=itemgetter(0))

    def _signer_for_any_key(self, prefix: str, error: StoreError) -> Signer:
        bucket = _open("/".join(self.url.split("/")[:3]), self._config, _TIMEOUT_SECONDS)
        signer = Signer.of(bucket, self._named)
        if signer is None:
            raise NoObject(
                f"cannot list {self.url}/{prefix}: somebody has put an object there under a key "
                f"that no member writes. Remove it ({error})",
                prefix,
            ) from error
        return signer

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        for key in keys:
            try:
                with self._translated(key):
                    obstore.delete(self._alive(), check_key(key))
            except NotFound:
                continue

    def _from_whole(self, key: str, start: int, stop: int) -> memoryview:
        """Serve a range from the whole object, for servers that do not answer range requests."""
        with self._lock:
            if key not in self._wholes:
                self._wholes[key] = self.get(key, limit=1 << 62)
                while len(self._wholes) > 1 and sum(map(len, self._wholes.values())) > _HELD_BYTES:
                    del self._wholes[next(iter(self._wholes))]
            body = self._wholes[key]
        if stop > len(body):
            raise WrongSize(f"{key} ends at byte {len(body)}, before {stop}", key)
        return memoryview(body)[start:stop]

    def _alive(self) -> Bucket:
        _check_not_forked(self.url)
        if not self._is_checked:
            scheme = self.url.partition("://")[0]
            if lacks_credentials(scheme, self._named):
                raise Denied(
                    f"{self.url}: there are no credentials for this bucket. "
                    + how_to_give_them(scheme)
                )
            self._is_checked = True
        return self._bucket

    def _waiting(self, size: int) -> Bucket:
        """A client that waits until so many bytes went up in one piece, over a slow link, too.

        Others have a shorter timeout, so that a server that fell silent is noticed.
        """
        seconds = size // _SLOWEST_BYTES
        if seconds <= _TIMEOUT_SECONDS or "timeout" in self._config:
            return self._alive()
        _check_not_forked(self.url)
        if seconds > self._patient[0]:
            self._patient = seconds, _open(self.url, self._config, seconds)
        return self._patient[1]

    def _translated(self, key: str, writing: bool = False) -> _Translated:
        return _Translated(self.url, key, writing, self._named)


def _check_bucket(url: str) -> None:
    """Refuse an address without a bucket, of which the library says something about its parser."""
    scheme, _, rest = url.partition("://")
    if not rest.partition("/")[0].strip():
        raise StoreError(
            f"{url} names no bucket: an address looks like {scheme}://bucket/folder, such as "
            f"{scheme}://trials/run-1"
        )


class _Translated:
    """Turns obstore's exceptions into ours."""

    def __init__(self, url: str, key: str, writing: bool, settings: Mapping[str, str]) -> None:
        self.url, self.key, self.writing, self.settings = url, key, writing, settings

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StoreError):
            return
        from obstore import exceptions

        where = f"{self.url}/{self.key}"
        if isinstance(error, (FileNotFoundError, exceptions.NotFoundError)):
            if self.writing:
                bucket = "/".join(self.url.split("/")[:3])
                raise Denied(f"cannot write {where}: there is no bucket {bucket}", self.key)
            raise NotFound(f"there is no {where}", self.key) from error
        if not isinstance(error, (exceptions.BaseError, OSError, NotImplementedError)):
            return
        text = without(_first_lines(error), self.settings)
        if any(sign in text for sign in _ASKED_FOR_CREDENTIALS):
            raise Denied(
                f"{where}: no credentials could be had for this bucket ({text}). "
                + how_to_give_them(self.url.partition("://")[0]),
                self.key,
            ) from error
        if _REFUSED.search(text) or isinstance(
            error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        ):
            raise Denied(
                f"{where}: the credentials are wrong, or do not allow this: {text}", self.key
            ) from error
        if isinstance(error, exceptions.AlreadyExistsError):
            raise AlreadyExists(f"{where} exists already", self.key) from error
        if isinstance(error, (exceptions.NotSupportedError, NotImplementedError)):
            raise Unsupported(f"{where}: {text}", self.key) from error
        raise StoreError(f"{where}: {text}", self.key) from error


def _check_not_forked(url: str) -> None:
    """Raise where a call would hang: obstore's threads do not survive a fork."""
    global _process
    _process = _process or os.getpid()
    if os.getpid() != _process:
        raise Unsupported(
            f"{url} cannot be used here: this process was forked after a bucket was opened, and "
            "the connections do not survive that. Start processes with spawn or forkserver"
        )


def _open(url: str, config: dict[str, str], seconds: int) -> Bucket:
    from obstore import exceptions
    from obstore.store import from_url

    client: Any = {"timeout": f"{seconds}s", "connect_timeout": "10s"}
    # a server named by http:// is to be spoken to without TLS, whoever named it
    named = {**_environment(url), **config}
    if any(v.startswith("http://") for k, v in named.items() if "endpoint" in k or "url" in k):
        client["allow_http"] = True
    # obstore panics on a client's option among the store's
    client.update({k: v for k, v in config.items() if k in _CLIENT_OPTIONS})
    given: Any = {k: v for k, v in config.items() if k not in _CLIENT_OPTIONS}
    retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
    try:
        return from_url(url, config=given, client_options=client, retry_config=retry)
    except (exceptions.BaseError, ValueError) as error:
        text = without(_first_lines(error), named)
        if any(word in text for word in ("Missing", "must be specified", "credential")):
            text = f"{text}. {how_to_give_them(url.partition('://')[0])}"
        raise StoreError(f"cannot open {url}: {text}") from error


def _environment(url: str) -> dict[str, str]:
    """What the environment says of this kind of bucket, which obstore goes by, too."""
    kinds = {"s3": "aws_", "gs": "google_", "az": "azure_"}
    prefix = kinds.get(url.partition("://")[0], "aws_")
    named = {name.lower(): value for name, value in os.environ.items()}
    return {name: value for name, value in named.items() if name.startswith(prefix)}


def _pieces(parts: Sequence[Bytes]) -> Iterator[bytes]:
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), _PART_BYTES):
            yield bytes(view[start : start + _PART_BYTES])


def _first_lines(error: BaseException) -> str:
    """Obstore appends a debug dump of the error; what a person needs stands above it."""
    return str(error).split("\n\nDebug source")[0].strip()
