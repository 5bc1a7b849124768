"""Listing an S3 bucket that has keys which the object store library refuses.

It reads a page of keys only as a whole. So one object under a key such as `updates//x`, which
anybody may write who may write at all, would end every listing of the federation. S3 is asked
directly then, with the same credentials where they are known here: those of a machine are not.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit

from hubless.errors import StoreError
from hubless.store.base import Entry

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SECONDS = 60
_LARGEST_PAGE = 64 << 20


@dataclass(frozen=True)
class Signer:
    """What signs requests to a bucket: where it answers, and by whose key."""

    place: str
    """The bucket's own address, with its scheme."""
    scope: str
    """Region and service, as signatures name them."""
    key: str
    secret: str
    token: str

    @classmethod
    def of(cls, bucket: ObjectStore, settings: Mapping[str, str]) -> Signer | None:
        """For a bucket that is open with these settings; None where the secret is not in them."""
        import obstore
        from obstore.store import S3Store

        plain = {name.removeprefix("aws_"): value for name, value in settings.items()}
        if not isinstance(bucket, S3Store) or not plain.get("secret_access_key"):
            return None
        # a signed address tells what the library makes of endpoint, region and style
        signed = urlsplit(obstore.sign(bucket, "GET", "", timedelta(minutes=1)))
        asked = parse_qs(signed.query)
        key, _, region, service, _ = asked["X-Amz-Credential"][0].rsplit("/", 4)
        return cls(
            f"{signed.scheme}://{signed.netloc}{signed.path}",
            f"{region}/{service}",
            key,
            plain["secret_access_key"],
            asked.get("X-Amz-Security-Token", [""])[0],
        )

    def address(self, query: Mapping[str, str]) -> str:
        """A signed address, which may be read for a minute (AWS Signature, version 4)."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        day = now[:8]
        scope = f"{day}/{self.scope}/aws4_request"
        asked = {
            **query,
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.key}/{scope}",
            "X-Amz-Date": now,
            "X-Amz-Expires": "60",
            "X-Amz-SignedHeaders": "host",
            **({"X-Amz-Security-Token": self.token} if self.token else {}),
        }
        place = urlsplit(self.place)
        words = "&".join(f"{quote(n, safe='')}={quote(asked[n], safe='')}" for n in sorted(asked))
        path = place.path or "/"
        request = f"GET\n{path}\n{words}\nhost:{place.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = b"AWS4" + self.secret.encode()
        for part in (day, *self.scope.split("/"), "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        return f"{place.scheme}://{place.netloc}{path}?{words}&X-Amz-Signature={signature}"


def listed(signer: Signer, prefix: str) -> Iterator[Entry]:
    """Everything below a prefix of the bucket, under whatever key it is."""
    query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
    while True:
        page = _page(signer.address(query))
        encoded = page.findtext("EncodingType") == "url"
        for item in page.iterfind("Contents"):
            key = item.findtext("Key") or ""
            modified = datetime.fromisoformat(item.findtext("LastModified") or "1970-01-01T00Z")
            yield Entry(
                unquote_plus(key) if encoded else key,
                int(item.findtext("Size") or 0),
                modified.timestamp(),
            )
        following = page.findtext("NextContinuationToken")
        if page.findtext("IsTruncated") != "true" or not following:
            return
        query["continuation-token"] = following


def _page(address: str) -> ElementTree.Element:
    where = address.partition("?")[0]
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as response:
            body = response.read(_LARGEST_PAGE)
        page = ElementTree.fromstring(body)
    except (OSError, http.client.HTTPException, ValueError, ElementTree.ParseError) as error:
        raise StoreError(f"cannot list {where}: {error}") from error
    for element in page.iter():
        # servers differ in whether they name the namespace
        element.tag = element.tag.rpartition("}")[2]
    return page
