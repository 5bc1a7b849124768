"""What is secret does not get into errors, events or reports: it is shown as ***.

Which words are secrets cannot be known for certain. So whatever is named like one is hidden, and
whatever looks like one: better a harmless word too many than a key in a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_SECRET_WORDS = {
    *("auth", "authorization", "bearer", "credential", "credentials", "jwt", "key", "apikey"),
    *("pass", "passphrase", "passwd", "password", "pat", "pin", "pwd", "sas", "secret", "secrets"),
    *("sig", "signature", "token"),
}
_HARMLESS_KEYS = {"id", "name", "path", "file", "endpoint", "uri", "url", "provider"}
"""What such a name ends in where it tells of a secret and is none, as in `token_file`."""

_USER_AND_PASSWORD = re.compile(r"://[^/\s@:]*:(?!\d{1,5}(?:/|\s|$))[^\s@]*@")
_USER = re.compile(r"://[^/\s@:]+@")
_LOOKS_SECRET = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|hf_\w{16,}|xox[a-z]-[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{12,}|AIza[\w-]{20,}|glpat-[\w-]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_ASSIGNED = re.compile(
    r"""(?P<name>[A-Za-z][\w.-]*)(?P<is>["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|(?:(?:Bearer|Basic|Token)\s+)?[^\s&;,"'<>]+)"""
)


def masked(text: str) -> str:
    """A text without what gives access in the addresses that it has.

    >>> masked("cannot open s3://KEY:SEC/RET@bucket/run, nor https://host/b?sig=c2Vj&v=2")
    'cannot open s3://***@bucket/run, nor https://host/b?sig=***&v=2'
    """
    if "://" not in text:
        return text
    text = _USER_AND_PASSWORD.sub(f"://{HIDDEN}@", text)
    text = _USER.sub(f"://{HIDDEN}@", text)
    return re.sub(r"(?<=[?&])[^\s?&=]+=[^\s&]+", lambda match: _assigned(match[0]), text)


def without(text: str, settings: Mapping[str, str]) -> str:
    """A text without these settings' secrets, wherever they stand in it.

    >>> without("403 for hunter2 at http://host", {"secret_access_key": "hunter2", "region": "403"})
    '403 for *** at http://host'
    """
    secrets = {value for name, value in settings.items() if is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        # what is shorter is no secret, and would be found in any word
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    return masked(text)


def masked_command(words: Sequence[str]) -> list[str]:
    """A command's words without those that are secret, as far as one can tell.

    >>> masked_command(["train.py", "--api-key", "s3cr3t", "--lr=0.1", "DB_PASSWORD=x"])
    ['train.py', '--api-key', '***', '--lr=0.1', 'DB_PASSWORD=***']
    """
    shown: list[str] = []
    follows = False
    for word in words:
        if follows and not word.startswith("--"):
            shown.append(HIDDEN)
            follows = False
            continue
        follows = word.startswith("-") and "=" not in word and is_secret(word)
        shown.append(_LOOKS_SECRET.sub(HIDDEN, _masked_assignments(masked(word))))
    return shown


def is_secret(name: str) -> bool:
    """Whether what goes by this name is to be hidden.

    >>> [name for name in ("api-key", "awsSecretAccessKey", "max_tokens", "sas") if is_secret(name)]
    ['api-key', 'awsSecretAccessKey', 'sas']
    """
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", split.lower()) if word]
    return any(map(_SECRET_WORDS.__contains__, words)) and words[-1] not in _HARMLESS_KEYS


def _masked_assignments(text: str) -> str:
    shown, at = "", 0
    while match := _ASSIGNED.search(text, at):
        shown += text[at : match.start("value")]
        value, at = match["value"], match.start("value")
        # a value may be an assignment itself, as a header is in --header=NAME:VALUE
        if is_secret(match["name"]) and not value.startswith("//"):
            quote = value[0] if value[0] in "\"'" else ""
            shown, at = f"{shown}{quote}{HIDDEN}{quote}", match.end()
    return shown + text[at:]


def _assigned(text: str) -> str:
    name, _, _ = text.partition("=")
    return f"{name}={HIDDEN}" if is_secret(name) else text
