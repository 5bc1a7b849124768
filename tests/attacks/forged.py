"""What an attacker makes: updates, plans and slices that look like a member's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hubless.federate import keys
from hubless.federate.keys import Incarnation, Posted
from hubless.signature import Signature
from hubless.store import codec
from tests.attacks.scene import Params, Scene

STRANGER = Incarnation(1, "badbadba")


def update(
    scene: Scene,
    client: str,
    params: Params,
    *,
    sequence: int = 0,
    life: Incarnation = STRANGER,
    examples: int = 10,
    version: int = 0,
    round: int | None = None,
    metrics: dict[str, Any] | None = None,
) -> Posted:
    """Put a sound update of these params in somebody's name, in a round or asynchronously."""
    signature = Signature.of(params)
    folder = keys.UPDATES if round is None else f"{keys.round_folder(round)}updates/"
    posted = Posted(folder, client, sequence, life, examples, version, signature.digest)
    says = {
        "client": client,
        "sequence": str(sequence),
        "examples": str(examples),
        "version": str(version),
        "metrics": json.dumps(metrics or {}),
    }
    flat = signature.pack({name: np.asarray(array) for name, array in params.items()})
    scene.put(posted.key, b"".join(bytes(p) for p in codec.encode(signature, flat, says)))
    return posted


def plan(included: list[str], before: Any = None, by: str = "mallory", **more: Any) -> bytes:
    """A plan that includes these updates."""
    document = {"included": included, "before": before, "by": by, "nonce": "0" * 16}
    return json.dumps({**document, **more}).encode()
