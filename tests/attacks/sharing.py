"""Attacks on asynchronous members: by plain writes and deletes, so on any store."""

from __future__ import annotations

import numpy as np

from tests.attacks import forged
from tests.attacks.scene import Scene, attack, params


@attack("9", "an update of 10^15 - 1 examples")
def a_huge_number_of_examples(scene: Scene) -> None:
    honest = scene.join("a"), scene.join("b")
    for member in honest:
        scene.call("share", lambda member=member: member.step(params(1.0), examples=100))
    forged.update(scene, "mallory", params(50.0), examples=10**15 - 1)
    result = scene.call("step", lambda: honest[0].step(params(1.0), examples=100))
    # ten times the median of 100, 100 and its own is the most that it may weigh
    share = 1000 / 1200
    scene.check_within("step", result, 1.0, 1.0 + share * 49.0 + 1e-3)


@attack("4a", "NaN in an update")
def params_that_are_no_numbers(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("share", lambda: a.step(params(1.0), examples=10))
    forged.update(scene, "mallory", params(np.nan))
    result = scene.call("step", lambda: a.step(params(1.0), examples=10))
    scene.check_within("step", result, 1.0, 1.0)
    scene.check_named("mallory")
