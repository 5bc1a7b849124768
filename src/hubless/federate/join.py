"""Joining a federation: the one call that a training script needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hubless.errors import FederationError
from hubless.events import Listener
from hubless.federate.asynchronous import Asynchronous
from hubless.federate.federation import Federation, Optimizer
from hubless.federate.model import Model
from hubless.federate.quorum import Quorum
from hubless.federate.reduction import ABSURD
from hubless.federate.synchronous import Synchronous
from hubless.federate.terms import Terms
from hubless.patience import Clock, SystemClock
from hubless.store import Store, open_store
from hubless.store.reliable import Reliable
from hubless.strategy.base import Strategy
from hubless.strategy.fedavg import FedAvg


def join(
    url: str | Path | Store,
    client: str,
    *,
    strategy: Strategy | None = None,
    mode: Literal["async", "sync"] = "async",
    model: Model | None = None,
    optimizer: Optimizer | None = None,
    examples: int = 1,
    every: int = 1,
    participation: float = 1.0,
    share: Sequence[str] | None = None,
    peers: Literal["new", "all"] = "new",
    members: int | Sequence[str] | None = None,
    quorum: int | None = None,
    deadline: float = 600.0,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    patience: float = 60.0,
    limit: float = ABSURD,
    seed: int = 0,
    on_event: Listener | Sequence[Listener] = (),
    clock: Clock | None = None,
) -> Federation:
    """Join the federation that meets in a folder or bucket, under a name of one's own.

    Args:
        url: A folder, `s3://bucket/run`, `gs://...`, `az://...`, or a store of your own.
        client: This site's name. Join again under it after a crash and go on where you were.
        strategy: How updates are combined; `FedAvg()` if not given. In async mode each member
            may have its own.
        mode: `async` (nobody waits) or `sync` (rounds that all end with the same bytes).
        model: A torch module, or a dict of tensors. Checked at once against what the others
            train, and loaded with the federation's params (or the first member's, to begin with).
            A dict of arrays is checked here and loaded with `federation.pull`.
        optimizer: A torch optimizer: federate from its steps, leaving the loop untouched.
        examples: With `optimizer`, how many examples this site trains on.
        every: Federate at every n-th step or call only.
        participation: The probability C of taking part; otherwise train on alone.
        share: Patterns of parameter names to share (`["encoder.*"]`); the rest stays private.
        peers: In async mode, average in what is `new` since last time, or `all` newest updates.
        members: In sync mode, how many there are, or their names.
        quorum: In sync mode, how many updates are enough once the deadline has passed.
        deadline: In sync mode, seconds to wait for the others.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for the bucket, such as `{"aws_region": "eu-west-1"}`.
        patience: Seconds during which a failing store is tried again.
        limit: Peers' params with a larger root mean square are refused as diverged.
        seed: Seeds the draws for `participation`.
        on_event: Called with each event.

    >>> import numpy as np
    >>> with join("memory://doc-join", "site-a") as federation:
    ...     params = federation.step({"w": np.ones(2)}, examples=100)
    >>> params["w"]
    array([1., 1.])
    """
    if mode not in ("async", "sync"):
        raise FederationError(f"mode is 'async' or 'sync', not {mode!r}")
    if mode == "async" and not (members is None and quorum is None):
        raise FederationError('members= and quorum= go with mode="sync": async waits for nobody')
    if optimizer is not None and (model is None or isinstance(model, Mapping)):
        raise FederationError("optimizer= needs model=, the module that it trains")
    clock = clock or SystemClock()
    terms = Terms(
        client=client,
        strategy=strategy or FedAvg(),
        share=share,
        every=every,
        participation=participation,
        seed=seed,
        limit=limit,
        listeners=[on_event] if callable(on_event) else list(on_event),
        clock=clock,
    )
    opened = url if isinstance(url, Store) else open_store(url, endpoint, options)
    store = Reliable(opened, patience, clock)
    federation: Federation
    if mode == "async":
        federation = Asynchronous(store, terms, peers)
    else:
        federation = Synchronous(store, terms, Quorum.of(members, quorum, client), deadline)
    if model is not None:
        federation.start(model)
    if model is not None and optimizer is not None:
        federation.attach(model, optimizer, examples)
    return federation
