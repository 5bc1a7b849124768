"""A member that leaves says so: nobody waits for it, and who stays goes on to its own end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.commands import ENVIRONMENT, PATIENCE, events_in, hubless

DEADLINE = 150
SITE = """
import sys
import numpy as np
import hubless

name, steps, members, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
params = {"w": np.zeros(3)}
federation = hubless.join(
    "meeting", name, pace=hubless.Rounds(eval(members), deadline=%d), events=name,
)
with federation:
    for step in range(steps):
        params = federation.step({"w": params["w"] + 1 + step}, examples=10)
    if how == "finish":
        params = federation.finish(params)
assert how == "step" or federation.version >= steps
np.save(name + ".npy", params["w"])
"""


@pytest.mark.parametrize("ending", ["", "raise ValueError", "import os\nif not os.fork(): exit()"])
def test_a_process_that_ends_without_closing_has_left(ending: str, tmp_path: Path) -> None:
    lines = f"import hubless\nfederation = hubless.join({str(tmp_path)!r}, 'a')\n{ending}"
    ran = subprocess.run([sys.executable, "-c", lines], timeout=PATIENCE, capture_output=True)
    assert ran.returncode == ("raise" in ending)
    left = [path for path in (tmp_path / "members").iterdir() if "left" in path.name]
    assert len(left) == 1


@pytest.mark.parametrize("members", ["3", "['a', 'b', 'c']"])
def test_sites_with_unequal_numbers_of_rounds_all_end_without_a_deadline(
    members: str, tmp_path: Path
) -> None:
    (tmp_path / "site.py").write_text(SITE % DEADLINE)
    sites = {"a": ("2", "finish"), "b": ("4", "step"), "c": ("7", "finish")}
    processes = [
        subprocess.Popen(
            [sys.executable, "site.py", name, steps, members, how],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, (steps, how) in sites.items()
    ]
    for process in processes:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
    for name, (steps, _) in sites.items():
        told = events_in(tmp_path / name)
        rounds = {e["round"]: e for e in told if e["event"] == "closed"}
        assert len(rounds) >= int(steps)
        assert max(e["seconds"] for e in rounds.values()) < DEADLINE / 3
        assert not [e for e in told if e["event"] in ("late", "refused")]
    # who has the most rounds plays the last ones alone
    assert rounds[6]["included"] == ["c"]
    assert hubless("pull", "meeting", cwd=tmp_path).returncode == 0
    model = load_file(tmp_path / "model.safetensors")["w"]
    assert np.array_equal(model, np.load(tmp_path / "c.npy"))
