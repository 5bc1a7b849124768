"""The second part: five sites that each hold other digits federate through a folder.

Each site is a process of its own that trains scikit-learn's MLP on its share of the digits data,
once alone and once as a member. One of them is killed on the way, and comes back under its name.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hubless
from hubless.demo.bar import Bar
from hubless.events import to_file
from hubless.rng import stream

SITES = ["airport", "bakery", "clinic", "dairy", "embassy"]
VICTIM = "clinic"
CLASSES = np.arange(10)
SKEW = 0.9
HIDDEN = 48


def run(folder: Path, *, epochs: int) -> Path | None:
    """Start a process per site, kill one, see it return; None where a site failed."""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"2. {len(SITES)} sites, each a process of its own, meet in {folder}.")
    print(f"   Each holds mostly its own two digits and shares only params; {VICTIM} is killed.\n")
    watched = Watched(folder, epochs)
    results = watched.follow()
    if results is None:
        return None
    print("\naccuracy on 450 digits that no site has seen\n")
    print(f"{'site':10}{'digits':>10}{'examples':>10}{'alone':>10}{'federated':>12}")
    for name, result in sorted(results.items()):
        print(
            f"{name:10}{result['digits']:>10}{result['examples']:>10}"
            f"{result['alone']:>10.1%}{result['federated']:>12.1%}"
        )
    alone, federated = (np.mean([r[k] for r in results.values()]) for k in ("alone", "federated"))
    print(f"{'mean':10}{'':>10}{'':>10}{alone:>10.1%}{federated:>12.1%}")
    print(f"\n{_of_victim(watched.killed_at, results[VICTIM]['resumed_at'])}")
    return folder


def _of_victim(killed_at: int, resumed_at: int) -> str:
    """What became of the one that was to be killed: in a folder of old, nothing is left to train.

    >>> _of_victim(0, 10)
    'clinic had finished before it could be killed: another --folder starts anew.'
    """
    if not killed_at:
        return f"{VICTIM} had finished before it could be killed: another --folder starts anew."
    return (
        f"{VICTIM} was killed after epoch {killed_at} and went on from epoch {resumed_at}; "
        "nobody waited for it."
    )


@dataclass
class Watched:
    """The sites as they train: their processes, how far they are, and what they came to."""

    folder: Path
    epochs: int
    killed_at: int = 0
    epoch: dict[str, int] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._bar = Bar("five sites", self.epochs, every=2.0)
        self._sites = {name: self._start(name) for name in SITES}

    def follow(self) -> dict[str, dict[str, Any]] | None:
        """Show how they get on until all have ended; None where one failed."""
        open_ends = len(SITES)
        while open_ends:
            message = self._messages.get()
            if "ended" in message:
                if message["ended"] == -signal.SIGKILL and message["site"] == VICTIM:
                    self.killed_at = self.epoch[VICTIM]
                    threading.Timer(1.5, self._return).start()
                    continue
                open_ends -= 1
            elif "federated" in message:
                self.results[message["site"]] = message
            else:
                self.epoch[message["site"]], self.accuracy[message["site"]] = (
                    message["epoch"],
                    message["accuracy"],
                )
                self._kill_in_time(message["site"])
                self._show()
        return self.results if len(self.results) == len(SITES) else None

    def _kill_in_time(self, site: str) -> None:
        if site == VICTIM and not self.killed_at and self.epoch[site] >= self.epochs // 3:
            self._sites[site].kill()

    def _return(self) -> None:
        self._sites[VICTIM] = self._start(VICTIM)

    def _show(self) -> None:
        slowest = min(self.epoch.values()) if len(self.epoch) == len(SITES) else 0
        shown = "  ".join(f"{name} {self.accuracy[name]:.0%}" for name in sorted(self.accuracy))
        self._bar.show(slowest, shown)

    def _start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hubless.demo.sites", "--site", str(SITES.index(name))]
        command += ["--epochs", str(self.epochs), "--folder", str(self.folder)]
        site = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)

        def read() -> None:
            for line in site.stdout or ():
                try:
                    self._messages.put(json.loads(line))
                except ValueError:
                    # killed in the middle of a line
                    continue
            self._messages.put({"site": name, "ended": site.wait()})

        threading.Thread(target=read, daemon=True).start()
        return site


def main(arguments: Sequence[str] | None = None) -> int:
    """One site's training script: what a user would write, plus saying how it goes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args(arguments)
    name = SITES[asked.site]
    features, labels, test_features, test_labels = _digits(asked.site)
    alone = _classifier(features, labels)
    for _ in range(asked.epochs + 1):
        alone.partial_fit(features, labels)
    together = _classifier(features, labels)
    log = to_file(asked.folder / f"{name}.jsonl")
    with hubless.join(asked.folder, name, events=log) as federation:
        resumed_at = federation.member.sequence + 1
        if federation.resumed:
            # what the others have arrived at meanwhile
            _load(together, federation.pull(_params(together)))
        for epoch in range(resumed_at, asked.epochs + 1):
            together.partial_fit(features, labels)
            metrics = {"loss": float(together.loss_)}
            params = federation.step(_params(together), examples=len(labels), metrics=metrics)
            _load(together, params)
            accuracy = together.score(test_features, test_labels)
            _say(site=name, epoch=epoch, accuracy=accuracy)
        _wait_for_all(federation.store, asked.epochs)
        _load(together, federation.pull(_params(together)))
    _say(
        site=name,
        digits=f"{2 * asked.site},{2 * asked.site + 1}",
        examples=len(labels),
        alone=alone.score(test_features, test_labels),
        federated=together.score(test_features, test_labels),
        resumed_at=resumed_at,
    )
    return 0


def _digits(index: int) -> tuple[NDArray[Any], ...]:
    """This site's share of the training digits, and the test digits that all share."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = stream(0, "demo", "split").permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order]
    train, train_labels = images[450:], labels[450:]
    rng = stream(0, "demo", "skew")
    anywhere = rng.integers(len(SITES), size=len(train_labels))
    site = np.where(rng.random(len(train_labels)) < SKEW, train_labels // 2, anywhere)
    mine = site == index
    return train[mine], train_labels[mine], images[:450], labels[:450]


def _classifier(features: NDArray[Any], labels: NDArray[Any]) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore", ConvergenceWarning)
    # the same seed at every site, so that all start from the same params
    model = MLPClassifier((HIDDEN,), learning_rate_init=0.005, batch_size=32, random_state=0)
    return model.partial_fit(features, labels, classes=CLASSES)


def _params(model: Any) -> dict[str, NDArray[Any]]:
    weights = {f"weights.{i}": w for i, w in enumerate(model.coefs_)}
    return {**weights, **{f"bias.{i}": b for i, b in enumerate(model.intercepts_)}}


def _load(model: Any, params: Mapping[str, Any]) -> None:
    for i in range(len(model.coefs_)):
        model.coefs_[i][...] = params[f"weights.{i}"]
        model.intercepts_[i][...] = params[f"bias.{i}"]


def _wait_for_all(store: Any, epochs: int) -> None:
    """Let the slower sites finish, so that the last pull has everybody's last update."""
    from hubless.federate.keys import UPDATES, newest, parse_updates

    until = time.monotonic() + 30
    while time.monotonic() < until:
        there = newest(parse_updates(store.list(UPDATES)))
        if len(there) == len(SITES) and all(p.sequence >= epochs - 1 for p in there.values()):
            return
        time.sleep(0.1)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
