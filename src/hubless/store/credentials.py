"""Whether a bucket can be opened at all: what to say where nobody gave any credentials.

Without credentials the object store library asks the address at which a cloud tells its own
machines who they are. Anywhere else nobody answers there, and asking takes minutes. So it is asked
for a second at most, and only where nothing else was given.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from hubless.errors import StoreError
from hubless.masked import is_secret

_METADATA = "http://169.254.169.254"
_SECONDS = 1.0
_GIVEN_BY = ("skip_signature", "cli", "role", "service_account", "identity", "msi", "container_")
"""Settings that give credentials, or say that none are needed, besides those that are secret."""
_HOW = {
    "s3": (
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        '{"access_key_id": ..., "secret_access_key": ...}',
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS (a file)", '{"service_account": FILE}'),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", '{"account_name": ..., "account_key": ...}'),
}


def check_address(url: str) -> None:
    """Refuse an address with credentials in it, without saying which."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in ("file", "memory") and "@" in rest:
        raise StoreError(
            f"{scheme}://***@{rest.rpartition('@')[2]}: an address has no credentials in it, "
            f"because addresses are shown. {how_to_give_them(scheme.lower())}"
        )


def lacks_credentials(scheme: str, settings: Mapping[str, str]) -> bool:
    """Whether neither these settings nor this machine say who is asking for a bucket."""
    if any(is_secret(name) or any(by in name for by in _GIVEN_BY) for name in settings):
        return False
    if any("credential" in name or name.endswith("key_id") for name in settings):
        return False
    if scheme == "gs" and os.path.exists(_google_file()):
        return False
    if scheme == "az" and "IDENTITY_ENDPOINT" in os.environ:
        return False
    if settings.get("aws_ec2_metadata_disabled", "").lower() == "true":
        return True
    return not _answers(_metadata_address(settings))


def how_to_give_them(scheme: str) -> str:
    """What to do about credentials that are missing or wrong."""
    variables, options = _HOW.get(scheme, _HOW["s3"])
    return (
        f"Give them in the environment, as {variables}, or as options={options} (--option "
        "KEY=VALUE on the command line), or run where the cloud provides them"
    )


def _google_file() -> str:
    folder = os.environ.get("APPDATA") or os.path.expanduser("~/.config")
    return os.path.join(folder, "gcloud", "application_default_credentials.json")


def _metadata_address(settings: Mapping[str, str]) -> str:
    named = [value for name, value in settings.items() if "metadata_endpoint" in name]
    if host := os.environ.get("GCE_METADATA_HOST"):
        named.append(f"http://{host}")
    return named[0] if named else _METADATA


def _answers(address: str) -> bool:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port or 80, timeout=_SECONDS
    )
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        connection.getresponse()
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return True
