"""The demo: a fleet of devices, simulated, and five sites that federate for real.

Needs the extra `demo`. Everything it makes lies in one folder, with a report of each part.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hubless.checks import folder_of, whole
from hubless.errors import HublessError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts, and say what came out and where the reports are."""
    parser = argparse.ArgumentParser(prog="hubless demo", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where everything goes (a new one otherwise)")
    parser.add_argument("--clients", type=int, default=2000, help="devices in the fleet")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each simulation")
    parser.add_argument("--epochs", type=int, default=25, help="what every site trains for")
    parser.add_argument("--only", choices=("fleet", "sites"), help="one part of the two")
    asked = parser.parse_args(arguments)
    for name in ("clients", "rounds", "epochs"):
        whole(f"--{name}", getattr(asked, name), least=1, error=HublessError)
    if asked.folder is not None:
        folder_of("--folder", asked.folder, error=HublessError)
    from hubless.demo import fleet, sites

    began = time.monotonic()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="hubless-demo-"))
    sources: list[Path] = []
    if asked.only != "sites":
        sources.append(fleet.run(folder / "fleet", clients=asked.clients, rounds=asked.rounds))
    if asked.only != "fleet":
        met = sites.run(folder / "sites", epochs=asked.epochs)
        if met is None:
            print("a site failed; what it said stands above", file=sys.stderr)
            return 1
        sources.append(met)
    _report(sources)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0


def _report(sources: Sequence[Path]) -> None:
    """A page for each part, next to what it is made of."""
    from hubless.watch.report.page import write_report

    print()
    for source in sources:
        page = write_report([source], source.with_suffix(".html"), pictures=False)
        print(f"report of the {source.name}: {page}")
    print(f"look at one as it went: hubless watch {sources[0]} --web")


if __name__ == "__main__":
    sys.exit(main())
