"""Objects that are no updates, or not ones to let in."""

from __future__ import annotations

import pickle
import random

import numpy as np

from hubless.federate.keys import Posted
from hubless.signature import Signature
from hubless.store import codec
from tests.support.schedules.basics import MALLORY, Content


def bad_object(rng: random.Random, shape: Signature, posted: Posted) -> tuple[str, bytes]:
    """Something that is not an update, or not one to let in."""
    params = Content.make(MALLORY, 9, posted.sequence).params
    says = {
        "client": posted.client,
        "sequence": str(posted.sequence),
        "examples": str(posted.examples),
    }
    flat = shape.pack(params)
    kinds = "garbage empty truncated longer nan absurd shape pickle another's flipped header"
    kind = rng.choice(kinds.split())
    if kind in ("nan", "absurd"):
        values = flat[8:].view(np.float32)
        values[rng.randrange(len(values))] = np.nan if kind == "nan" else 1e30
    if kind == "another's":
        says["client"] = "site-99"
    whole = b"".join(codec.encode(shape, flat, says))
    if kind == "garbage":
        whole = rng.randbytes(rng.choice((5, 100, len(whole))))
    elif kind == "empty":
        whole = b""
    elif kind == "truncated":
        whole = whole[: rng.randrange(1, len(whole))]
    elif kind == "longer":
        whole += b"more"
    elif kind == "pickle":
        whole = pickle.dumps(params)
    elif kind == "flipped":
        at = len(whole) - 1 - rng.randrange(len(flat))
        whole = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    elif kind == "header":
        whole = whole[:40] + b"\xff\x00{" + whole[43:]
    elif kind == "shape":
        other = {**params, "w": np.zeros((5, 4), np.float32)}
        another = Signature.of(other)
        whole = b"".join(codec.encode(another, another.pack(other), says))
    return kind, whole
