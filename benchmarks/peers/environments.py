"""One virtual environment per peer, made once under .bench/ from a file of exact versions."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).resolve().parent
HOME = PEERS.parent.parent / ".bench"


def python_of(peer: str) -> Path:
    """The interpreter of an environment that has only what `peer`.txt names."""
    home = HOME / peer
    python = home / "bin" / "python"
    pins = PEERS / f"{peer}.txt"
    done = home / "done"
    # the pins themselves are the mark: a changed file makes the environment anew
    if not done.exists() or done.read_text() != pins.read_text():
        print(f"setting up an environment for {peer}...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # what holds for this project's own environment must not reach the peer's
        environment = {k: v for k, v in os.environ.items() if k not in OURS}
        subprocess.run([*pip, "-r", str(pins)], check=True, env=environment, stdout=sys.stderr)
        done.write_text(pins.read_text())
    return python


OURS = ("PIP_CONSTRAINT", "PIP_REQUIREMENT", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

if __name__ == "__main__":
    print(python_of(sys.argv[1]))
