"""Plays every finding of the attackers' review against a folder and an S3 server.

python -m tests.attacks                 # all, as `make attacks` does
python -m tests.attacks --only 3 6      # some, by number
python -m tests.attacks --place folder  # no server
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

from tests.attacks.scene import Attack, Place, Scene, attacks, played
from tests.support import servers

_TRUST = Path(__file__).parents[2] / "docs" / "trust.md"


def main() -> int:
    """Print a line for each attack, and one JSON line of what all of them achieved."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    ask.add_argument("--only", nargs="+", default=(), metavar="NUMBER")
    ask.add_argument("--place", choices=("folder", "s3"))
    options = ask.parse_args()
    logging.getLogger("hubless").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    totals = {"attacks": 0, "hung": 0, "harmed": 0, "fooled": 0, "unnamed": 0}
    apart: list[dict[str, str]] = []
    trust = " ".join(_TRUST.read_text().split()) if _TRUST.exists() else ""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubless-attacks-")))
        os.environ["HUBLESS_STATE"] = str(work / "state")
        server = None
        if options.place != "folder":
            (work / "server").mkdir()
            server = stack.enter_context(servers.seaweedfs(work / "server"))
        for index, each in enumerate(attacks(options.only)):
            for place in each.places:
                if options.place not in (None, place):
                    continue
                scene = setting(each, place, work / f"{index}-{place}", server)
                began = time.monotonic()
                played(each, scene)
                achieved = {
                    "hung": scene.hung,
                    "harmed": scene.harm,
                    "fooled": scene.fooling,
                    "unnamed": scene.silence,
                }
                totals["attacks"] += 1
                lines = [f"{what}: {why}" for what, reasons in achieved.items() for why in reasons]
                if each.open:
                    if each.open not in trust:
                        lines.append(f"unnamed: docs/trust.md does not say: {each.open}")
                        totals["unnamed"] += 1
                    apart.append({"number": each.number, "place": place, "says": each.open})
                    word = "open"
                else:
                    for what, reasons in achieved.items():
                        totals[what] += len(reasons)
                    word = "held" if not lines else "BROKEN"
                seconds = time.monotonic() - began
                print(f"{each.number:>4}  {place:6}  {word:6}  {seconds:5.1f} s  {each.title}")
                for line in lines:
                    print(f"{'':22}{line}")
                sys.stdout.flush()
    print(json.dumps({**totals, "open": apart}))
    return int(any(totals[what] for what in ("hung", "harmed", "fooled", "unnamed")))


def setting(each: Attack, place: Place, folder: Path, server: servers.Server | None) -> Scene:
    """A fresh scene at this place."""
    home = folder / "home"
    home.mkdir(parents=True)
    if place == "folder":
        return Scene(str(folder / "federation"), home)
    assert server is not None
    return Scene(f"{server.url}/{folder.name}", home, {"options": server.options})


if __name__ == "__main__":
    # what hangs must not keep the process
    code = main()
    sys.stdout.flush()
    os._exit(code)
