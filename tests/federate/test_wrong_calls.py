"""Wrong calls of `join`: each is an error of one paragraph, before anything is written."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hubless
from hubless import Adaptive, Anytime, Bucket, Participation, Rounds, Selection, errors
from hubless.federate.federation import Federation
from hubless.select import Uniform
from hubless.store.memory import MemoryStore

STORE: Any = MemoryStore()


def joining(*where: Any, client: Any = "a", **given: Any) -> Callable[[], Federation]:
    """A call of `join` as it stands here, with everything right that is not said."""
    return lambda: hubless.join(*(where or (STORE,)), client, **given)


def paced(pace: Callable[[], Any]) -> Callable[[], Federation]:
    return lambda: hubless.join(STORE, "a", pace=pace())


def by(who: Callable[[], Any]) -> Callable[[], Federation]:
    return lambda: hubless.join(STORE, "a", who=who())


def at(place: Callable[[], Any]) -> Callable[[], Federation]:
    return lambda: hubless.join(place(), "a")


ANY: Any = None
NUMBER: Any = 3

CALLS: dict[str, Callable[[], Federation]] = {
    "where a number": joining(3),
    "where nothing": joining(None),
    "where empty": joining(""),
    "where unknown": joining("ftp://server/run"),
    "where no bucket": joining("s3://"),
    "where no bucket of Google": joining("gs:///run"),
    "where no bucket of Azure": at(lambda: Bucket("az://", options={"account_name": "a"})),
    "where a slash short": joining("s3:/bucket/run"),
    "where two slashes short": joining("gs:bucket/run"),
    "endpoint with a folder": at(lambda: Bucket("folder", endpoint="http://x")),
    "options of numbers": at(lambda: Bucket("s3://bucket/run", options={"region": ANY})),
    "where a query": joining("s3://bucket/run?x=1"),
    "bucket of a bucket": at(lambda: Bucket(Bucket(STORE))),  # type: ignore[arg-type]
    "patience -1": at(lambda: Bucket(STORE, patience=-1)),
    "patience nan": at(lambda: Bucket(STORE, patience=math.nan)),
    "patience text": at(lambda: Bucket(STORE, patience="10")),  # type: ignore[arg-type]
    "options a number": at(lambda: Bucket("s3://bucket/run", options=NUMBER)),
    "endpoint a number": at(lambda: Bucket("s3://bucket/run", endpoint=NUMBER)),
    "endpoint with a store": at(lambda: Bucket(STORE, endpoint="http://x")),
    "options with a store": at(lambda: Bucket(STORE, options={"aws_region": "x"})),
    "client": joining(client="a/b"),
    "client empty": joining(client=""),
    "client a number": joining(client=3),
    "pace text": joining(pace="sync"),
    "pace a class": joining(pace=Rounds),
    "pace a simulation's": joining(pace=hubless.Pace()),
    "peers some": paced(lambda: Anytime(peers="some")),  # type: ignore[arg-type]
    "rounds of nobody": paced(lambda: Rounds()),
    "deadline nan": paced(lambda: Rounds(2, deadline=math.nan)),
    "deadline -1": paced(lambda: Rounds(2, deadline=-1.0)),
    "deadline 0": paced(lambda: Rounds(2, deadline=0)),
    "deadline text": paced(lambda: Rounds(2, deadline="10")),  # type: ignore[arg-type]
    "deadline inf": paced(lambda: Rounds(2, deadline=math.inf)),
    "deadline None": paced(lambda: Rounds(2, deadline=ANY)),
    "adaptive without a quorum": paced(lambda: Rounds(3, deadline=Adaptive())),
    "adaptive with a quorum of all": paced(lambda: Rounds(3, 3, Adaptive())),
    "adaptive text": paced(lambda: Rounds(3, 2, "adaptive")),  # type: ignore[arg-type]
    "adaptive a class": paced(lambda: Rounds(3, 2, Adaptive)),  # type: ignore[arg-type]
    "adaptive k -1": paced(lambda: Rounds(3, 2, Adaptive(k=-1))),
    "adaptive k nan": paced(lambda: Rounds(3, 2, Adaptive(k=math.nan))),
    "adaptive ceiling 0": paced(lambda: Rounds(3, 2, Adaptive(ceiling=0))),
    "adaptive ceiling inf": paced(lambda: Rounds(3, 2, Adaptive(ceiling=math.inf))),
    "adaptive window 1": paced(lambda: Rounds(3, 2, Adaptive(window=1))),
    "adaptive window 5.5": paced(lambda: Rounds(3, 2, Adaptive(window=5.5))),  # type: ignore[arg-type]
    "members 0": paced(lambda: Rounds(0)),
    "members -1": paced(lambda: Rounds(-1)),
    "members True": paced(lambda: Rounds(True)),
    "members 2.0": paced(lambda: Rounds(2.0)),  # type: ignore[arg-type]
    "members text": paced(lambda: Rounds("abc")),
    "members empty": paced(lambda: Rounds([])),
    "members twice": paced(lambda: Rounds(["a", "a", "b"])),
    "members numbers": paced(lambda: Rounds([1, 2])),  # type: ignore[list-item]
    "members of other names": paced(lambda: Rounds(["b", "c"])),
    "members with a bad name": paced(lambda: Rounds(["a", "b/c"])),
    "quorum 0": paced(lambda: Rounds(3, 0)),
    "quorum 4": paced(lambda: Rounds(3, 4)),
    "quorum 1.5": paced(lambda: Rounds(3, 1.5)),  # type: ignore[arg-type]
    "quorum True": paced(lambda: Rounds(3, True)),
    "who text": joining(who="uniform"),
    "who a number": joining(who=0.5),
    "who a selector": joining(who=Uniform()),
    "who a selector's class": joining(who=Uniform),
    "who a class": joining(who=Participation),
    "probability 0": by(lambda: Participation(0)),
    "probability 2": by(lambda: Participation(2)),
    "probability nan": by(lambda: Participation(math.nan)),
    "probability text": by(lambda: Participation("half")),  # type: ignore[arg-type]
    "probability seed": by(lambda: Participation(0.5, seed=-1)),
    "probability and all needed": joining(pace=Rounds(3), who=Participation(0.5)),
    "selector text": by(lambda: Selection("uniform", 1)),  # type: ignore[arg-type]
    "selector a class": by(lambda: Selection(Uniform, 1)),  # type: ignore[arg-type]
    "cohort 0": by(lambda: Selection(Uniform(), 0)),
    "cohort 1.0": by(lambda: Selection(Uniform(), 1.0)),  # type: ignore[arg-type]
    "cohort True": by(lambda: Selection(Uniform(), True)),
    "seed text": by(lambda: Selection(Uniform(), 1, seed="x")),  # type: ignore[arg-type]
    "seed float": by(lambda: Selection(Uniform(), 1, seed=1.5)),  # type: ignore[arg-type]
    "unpicked": by(lambda: Selection(Uniform(), 1, unpicked="sleep")),  # type: ignore[arg-type]
    "selector among a number": joining(pace=Rounds(3), who=Selection(Uniform(), 1)),
    "selector among a quorum": joining(pace=Rounds(quorum=1), who=Selection(Uniform(), 1)),
    "cohort above members": joining(pace=Rounds(["a", "b"]), who=Selection(Uniform(), 3)),
    "strategy class": joining(strategy=hubless.FedAvg),
    "strategy text": joining(strategy="FedAvg"),
    "every 0": joining(every=0),
    "every 1.5": joining(every=1.5),
    "every True": joining(every=True),
    "share text": joining(share="w"),
    "share empty": joining(share=[]),
    "share numbers": joining(share=[1]),
    "limit -1": joining(limit=-1),
    "limit nan": joining(limit=math.nan),
    "limit inf": joining(limit=math.inf),
    "limit text": joining(limit="x"),
    "outweigh 0": joining(outweigh=0),
    "outweigh nan": joining(outweigh=math.nan),
    "outweigh text": joining(outweigh="x"),
    "examples -1": joining(examples=-1),
    "examples without optimizer": joining(examples=10),
    "optimizer without model": joining(optimizer=object()),
    "events a number": joining(events=3),
    "events a stream": joining(events=sys.stdout),
    "events of numbers": joining(events=[3]),
    "private alone": joining(private=object()),
    "ledger alone": joining(ledger="x"),
    "model a number": joining(model=3),
    "model empty": joining(model={}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_of_join_is_an_error_of_one_paragraph_and_nothing_is_written(
    call: str,
) -> None:
    STORE.delete([entry.key for entry in STORE.list("")])
    with pytest.raises(hubless.HublessError) as raised:
        CALLS[call]()
    assert type(raised.value).__module__ == errors.__name__
    assert 20 < len(str(raised.value)) < 400
    assert "\n\n" not in str(raised.value)
    assert STORE.list("") == []
