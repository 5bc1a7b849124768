"""The demo: five sites that each hold other digits federate through a folder, as processes.

Each site is a process of its own that trains scikit-learn's MLP on its share of the digits data,
once alone and once as a member of a federation. Needs the `demo` extra.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hubless
from hubless.rng import stream

SITES = ["airport", "bakery", "clinic", "dairy", "embassy"]
CLASSES = np.arange(10)
SKEW = 0.9
HIDDEN = 48


def main(arguments: Sequence[str] | None = None) -> int:
    """Start one process per site, show how they get on, and print who gained what."""
    parser = argparse.ArgumentParser(prog="python -m hubless.demo", description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--folder", type=Path, help="where the sites meet (a new one if not given)")
    parser.add_argument("--site", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.site is not None:
        return _site(options.site, options.epochs, options.folder)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hubless-demo-"))
    print(f"{len(SITES)} sites, each a process of its own, meet in {folder}")
    print(f"each holds mostly its own two digits ({SKEW:.0%} label skew) and shares only params\n")
    started = time.monotonic()
    sites = [_start(i, options.epochs, folder) for i in range(len(SITES))]
    results = _follow(sites, options.epochs)
    if any(site.wait() for site in sites) or len(results) < len(SITES):
        print("a site failed; what it said stands above", file=sys.stderr)
        return 1
    print("\n\naccuracy on 450 digits that no site has seen\n")
    print(f"{'site':10}{'digits':>10}{'examples':>10}{'alone':>10}{'federated':>12}")
    for name, result in sorted(results.items()):
        print(
            f"{name:10}{result['digits']:>10}{result['examples']:>10}"
            f"{result['alone']:>10.1%}{result['federated']:>12.1%}"
        )
    alone, federated = (np.mean([r[k] for r in results.values()]) for k in ("alone", "federated"))
    print(f"{'mean':10}{'':>10}{'':>10}{alone:>10.1%}{federated:>12.1%}")
    print(f"\n{time.monotonic() - started:.0f} s. Look around: hubless ls {folder}")
    return 0


def _start(index: int, epochs: int, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hubless.demo", "--site", str(index)]
    command += ["--epochs", str(epochs), "--folder", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)


def _follow(sites: list[subprocess.Popen[str]], epochs: int) -> dict[str, dict[str, Any]]:
    """Show one line per epoch of the slowest site, and gather the results."""
    lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read(site: subprocess.Popen[str]) -> None:
        for line in site.stdout or ():
            lines.put(json.loads(line))
        lines.put(None)

    for site in sites:
        threading.Thread(target=read, args=(site,), daemon=True).start()
    done: dict[str, int] = {}
    accuracy: dict[str, float] = {}
    results: dict[str, dict[str, Any]] = {}
    open_ends, reported = len(sites), 0
    while open_ends:
        said = lines.get()
        if said is None:
            open_ends -= 1
        elif "federated" in said:
            results[said["site"]] = said
        else:
            done[said["site"]], accuracy[said["site"]] = said["epoch"], said["accuracy"]
            slowest = min(done.values()) if len(done) == len(sites) else 0
            bar = "#" * (30 * slowest // epochs)
            shown = "  ".join(f"{name} {accuracy[name]:.0%}" for name in sorted(accuracy))
            if sys.stdout.isatty():
                print(f"\r[{bar:30}] {shown}", end="", flush=True)
            elif slowest >= reported + 5:
                reported = slowest
                print(f"[{bar:30}] {shown}", flush=True)
    return results


def _site(index: int, epochs: int, folder: Path) -> int:
    """One site's training script: what a user would write, plus saying how it goes."""
    features, labels, test_features, test_labels = _digits(index)
    alone = _classifier(features, labels)
    for _ in range(epochs + 1):
        alone.partial_fit(features, labels)
    together = _classifier(features, labels)
    with hubless.join(folder, SITES[index]) as federation:
        for epoch in range(1, epochs + 1):
            together.partial_fit(features, labels)
            metrics = {"loss": float(together.loss_)}
            params = federation.step(_params(together), examples=len(labels), metrics=metrics)
            _load(together, params)
            accuracy = together.score(test_features, test_labels)
            _say(site=SITES[index], epoch=epoch, accuracy=accuracy)
        _wait_for_all(federation.store, epochs)
        _load(together, federation.pull(_params(together)))
    _say(
        site=SITES[index],
        digits=f"{2 * index},{2 * index + 1}",
        examples=len(labels),
        alone=alone.score(test_features, test_labels),
        federated=together.score(test_features, test_labels),
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
    from hubless.federate.layout import UPDATES, newest, parse_updates

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
