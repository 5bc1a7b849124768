"""Wrong calls of `join`: each is an error of one paragraph, before anything is written."""

from __future__ import annotations

import math
from typing import Any

import pytest

import hubless
from hubless import errors
from hubless.select import Uniform
from hubless.store.memory import MemoryStore

CALLS: dict[str, dict[str, Any]] = {
    "deadline nan": {"mode": "sync", "members": 2, "deadline": math.nan},
    "deadline -1": {"mode": "sync", "members": 2, "deadline": -1.0},
    "deadline text": {"mode": "sync", "members": 2, "deadline": "10"},
    "deadline inf": {"mode": "sync", "members": 2, "deadline": math.inf},
    "peers all in sync": {"mode": "sync", "members": 2, "peers": "all"},
    "peers some": {"peers": "some"},
    "patience -1": {"patience": -1},
    "patience nan": {"patience": math.nan},
    "every 0": {"every": 0},
    "every 1.5": {"every": 1.5},
    "every True": {"every": True},
    "participation 0": {"participation": 0},
    "participation nan": {"participation": math.nan},
    "participation text": {"participation": "half"},
    "members 0": {"mode": "sync", "members": 0},
    "members -1": {"mode": "sync", "members": -1},
    "members True": {"mode": "sync", "members": True},
    "members 2.0": {"mode": "sync", "members": 2.0},
    "members text": {"mode": "sync", "members": "abc"},
    "members empty": {"mode": "sync", "members": []},
    "members twice": {"mode": "sync", "members": ["a", "a", "b"]},
    "members numbers": {"mode": "sync", "members": [1, 2]},
    "quorum 0": {"mode": "sync", "members": 3, "quorum": 0},
    "quorum 4": {"mode": "sync", "members": 3, "quorum": 4},
    "quorum 1.5": {"mode": "sync", "members": 3, "quorum": 1.5},
    "quorum True": {"mode": "sync", "members": 3, "quorum": True},
    "deadline async": {"deadline": 5.0},
    "members async": {"members": 3},
    "selector text": {"selector": "uniform", "cohort": 1},
    "cohort 0": {"selector": Uniform(), "cohort": 0},
    "cohort 1.0": {"selector": Uniform(), "cohort": 1.0},
    "unpicked": {"selector": Uniform(), "cohort": 1, "unpicked": "sleep"},
    "unpicked alone": {"unpicked": "wait"},
    "selector sync number": {"mode": "sync", "members": 3, "selector": Uniform(), "cohort": 1},
    "strategy class": {"strategy": hubless.FedAvg},
    "strategy text": {"strategy": "FedAvg"},
    "share text": {"share": "w"},
    "share empty": {"share": []},
    "share numbers": {"share": [1]},
    "limit -1": {"limit": -1},
    "limit nan": {"limit": math.nan},
    "outweigh 0": {"outweigh": 0},
    "outweigh nan": {"outweigh": math.nan},
    "outweigh text": {"outweigh": "x"},
    "seed text": {"seed": "x"},
    "seed float": {"seed": 1.5},
    "examples -1": {"examples": -1},
    "examples without optimizer": {"examples": 10},
    "optimizer without model": {"optimizer": object()},
    "on_event number": {"on_event": 3},
    "on_event text": {"on_event": "x.jsonl"},
    "private alone": {"private": object()},
    "ledger alone": {"ledger": "x"},
    "model number": {"model": 3},
    "model empty": {"model": {}},
    "mode": {"mode": "later"},
    "mode None": {"mode": None},
    "client": {"client": "a/b"},
    "client empty": {"client": ""},
    "client number": {"client": 3},
    "options": {"options": 3},
    "endpoint with store": {"endpoint": "http://x"},
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_of_join_is_an_error_of_one_paragraph_and_nothing_is_written(
    call: str,
) -> None:
    store, terms = MemoryStore(), {"client": "a", **CALLS[call]}
    with pytest.raises(hubless.HublessError) as raised:
        hubless.join(store, **terms)
    assert type(raised.value).__module__ == errors.__name__
    assert 20 < len(str(raised.value)) < 400
    assert "\n\n" not in str(raised.value)
    assert store.list("") == []
