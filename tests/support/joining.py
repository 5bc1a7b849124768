"""Joining by settings that lie flat side by side, as worlds are drawn and scenes vary them."""

from __future__ import annotations

from typing import Any

import hubless

_ROUNDS = ("members", "quorum", "deadline")
_BUCKET = ("endpoint", "options", "patience")


def _taken(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings.pop(name) for name in names if name in settings}


def pace_of(settings: dict[str, Any]) -> hubless.Anytime | hubless.Rounds:
    """How members meet by these settings, which it takes out of them."""
    rounds = _taken(settings, *_ROUNDS)
    return hubless.Rounds(**rounds) if rounds else hubless.Anytime(**_taken(settings, "peers"))


def joined(where: Any, client: str, **settings: Any) -> hubless.Federation:
    """A member of a federation, by flat settings and by those of `hubless.join`."""
    if isinstance(where, hubless.Bucket):
        bucket = where
    else:
        bucket = hubless.Bucket(where, **_taken(settings, *_BUCKET))
    selection = _taken(settings, "selector", "cohort", "seed", "unpicked")
    if selection.get("selector") is not None:
        settings["who"] = hubless.Selection(**selection)
    return hubless.join(bucket, client, pace=pace_of(settings), **settings)
