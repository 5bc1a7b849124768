"""Federations over real servers: SeaweedFS and moto (S3), Azurite (Azure), and rclone."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hubless
from hubless.errors import UnsafeStore
from tests.support.servers import Server

ALL = ["seaweedfs", "moto", "azurite", "rclone"]
HONEST = ALL[:3]


def on(names: list[str]) -> Any:
    return pytest.mark.parametrize(
        "server", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in names], indirect=True
    )


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


def params(value: float) -> dict[str, Any]:
    """Ten MB: more than one part of an upload, and several reads."""
    return {"w": np.full(2_500_000, value, np.float32), "steps": np.array(int(value))}


@on(ALL)
def test_asynchronous_members_end_with_the_right_model(server: Server) -> None:
    url = f"{server.url}/{uuid.uuid4()}"
    members = [
        hubless.join(hubless.Bucket(url, options=server.options), f"m{i}", model=params(0.0))
        for i in range(4)
    ]
    for round_ in range(3):
        for i, member in enumerate(members):
            member.step(params(float(i + round_)), examples=i + 1)
    expected = sum((i + 2) * (i + 1) for i in range(4)) / 10
    for member in members:
        assert np.allclose(member.pull(params(0.0))["w"], expected)
        member.close()


@on(HONEST)
def test_synchronous_members_end_with_the_same_bytes(server: Server) -> None:
    url = f"{server.url}/{uuid.uuid4()}"

    def member(index: int) -> list[bytes]:
        with hubless.join(
            hubless.Bucket(url, options=server.options),
            f"m{index}",
            pace=hubless.Rounds(members=3),
            strategy=hubless.FedAvgM(),
        ) as joined:
            rounds = [joined.step(params(float(r + index)), examples=1) for r in range(3)]
            return [result["w"].tobytes() for result in rounds]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(member, range(3)))
    assert results[0] == results[1] == results[2]
    assert np.allclose(np.frombuffer(results[0][0], np.float32), 1.0)


@on(["rclone"])
def test_synchronous_mode_says_why_it_will_not_run_where_conditions_are_ignored(
    server: Server,
) -> None:
    with pytest.raises(UnsafeStore, match=r"overwrote an object.*Anytime\(\)"):
        hubless.join(
            hubless.Bucket(f"{server.url}/{uuid.uuid4()}", options=server.options),
            "a",
            pace=hubless.Rounds(members=3, quorum=2),
        )
