"""Members that are killed at random on a failing store lose nothing and agree in the end."""

from typing import Any

import pytest

from tests.support.soak import soak

pytestmark = pytest.mark.xdist_group("soak")


def _check(report: dict[str, Any], members: int) -> None:
    assert not any(report["verdict"].values()), report
    assert report["results"] == members, report
    # a run in which nothing happened would prove nothing
    assert report["kills"] >= 4 and report["audited"] >= members, report


@pytest.mark.timeout(240)
def test_killed_members_with_a_policy_each_on_a_failing_bucket_lose_nothing() -> None:
    report = soak(members=40, seconds=15, seed=1)
    _check(report, 40)
    assert report["confined"], report
    assert report["errors"] and report["lost"] and report["delayed"], report
    assert report["offline"] <= 2, report


@pytest.mark.timeout(120)
def test_killed_members_on_a_folder_lose_nothing() -> None:
    report = soak(members=8, seconds=4, seed=2, store="folder", kill_every=0.5)
    _check(report, 8)
    assert report["offline"] == 0, report


@pytest.mark.timeout(180)
def test_synchronous_members_that_are_killed_never_hang_and_never_disagree() -> None:
    report = soak(
        members=6, seconds=6, seed=3, store="folder", mode="sync", kill_every=1.2, patience=60
    )
    _check(report, 6)
    assert report["rounds"] >= 3 and report["slowest_step"] < 30, report
