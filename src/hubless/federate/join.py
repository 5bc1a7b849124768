"""Joining a federation: the one call that a training script needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hubless.errors import FederationError
from hubless.events import Listener
from hubless.federate.asynchronous import Asynchronous
from hubless.federate.checks import check_bucket, check_members, listeners_of, number, whole
from hubless.federate.federation import Federation, Hookable, Mode
from hubless.federate.fold import OUTWEIGH
from hubless.federate.member import Member
from hubless.federate.model import Model, shared_names
from hubless.federate.picking.draw import Selection
from hubless.federate.ranks import among_ranks, several
from hubless.federate.rounds.closing import Quorum
from hubless.federate.synchronous import Synchronous
from hubless.federate.terms import Terms
from hubless.params import whole_examples
from hubless.patience import Clock, SystemClock
from hubless.privacy.mechanisms import Mechanism
from hubless.select.roster import Selector
from hubless.store import Store, open_store
from hubless.store.reliable import Reliable
from hubless.strategy.base import Strategy
from hubless.strategy.fedavg import FedAvg

_YEARS = 1e9
"""Whoever waits longer waits for ever."""


def join(
    url: str | Path | Store,
    client: str,
    *,
    strategy: Strategy | None = None,
    mode: Literal["async", "sync"] = "async",
    model: Model | None = None,
    optimizer: Hookable | None = None,
    examples: int | None = None,
    every: int = 1,
    participation: float = 1.0,
    share: Sequence[str] | None = None,
    peers: Literal["new", "all"] = "new",
    members: int | Sequence[str] | None = None,
    quorum: int | None = None,
    deadline: float | None = None,
    selector: Selector | None = None,
    cohort: int | None = None,
    unpicked: Literal["wait", "train"] | None = None,
    private: Mechanism | None = None,
    ledger: str | Path | None = None,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    patience: float = 60.0,
    limit: float | None = None,
    outweigh: float = OUTWEIGH,
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
        examples: With `optimizer`, how many examples this site trains on between two updates;
            counted from the batches that the module is called with if not given.
        every: Federate at every n-th step or call only.
        participation: The probability C of taking part; otherwise train on alone.
        share: Patterns of parameter names to share (`["encoder.*"]`); the rest stays private.
        peers: In async mode, average in what is `new` since last time, or `all` newest updates.
        members: In sync mode, how many there are, or their names.
        quorum: In sync mode, how many updates are enough once the deadline has passed.
        deadline: In sync mode, seconds to wait for the others; 600 if not given.
        selector: Who trains next, such as `hubless.select.Activity("sqrt")`; everybody if not
            given. There is no server that would pick: in sync mode everybody draws the same
            members for a round, from what the plans of earlier rounds tell, and needs the same
            `selector`, `cohort`, `seed` and names of `members`. In async mode every member draws
            in each of its own steps, from everybody's newest update, and shares if it is among
            them; a member of which there is no update yet shares first.
        cohort: With `selector`, how many train in a round.
        unpicked: With `selector`, what a step does for a member that is not picked. `wait` (usual
            in sync mode) waits until the round is over and loads its result; `deadline` counts
            from the round's first update, and should leave the others time to train. Rounds do
            not wait for who is not picked: a member that finds some gone by loads their result and
            shares nothing yet, so that all training for a round starts from the one before. Go by
            `federation.version`, the number of rounds a member has seen, and not by calls. In
            async mode nobody waits: a member takes in what is new without sharing. `train` (usual
            in async mode) leaves the model as it is, so that training goes on.
        private: A mechanism of `hubless.privacy.mechanisms` that the valuations of `step` pass
            through before anybody sees them. What they cost goes by the events.
        ledger: With `private`, the file on this site's own disk that remembers what was given
            away over restarts; below `$HUBLESS_STATE` or `~/.local/state/hubless` if not given. A
            site without one counts by its traces in the store, which whoever runs that can
            delete: one report for each update it is known to have shared, and one more for each
            predecessor. The larger of the two counts.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for the bucket, such as `{"aws_region": "eu-west-1"}`.
        patience: Seconds during which a failing store is tried again.
        limit: Peers' params with a larger root mean square are refused as diverged; a million if
            not given. The stricter of this and the federation's counts.
        outweigh: An update counts for at most this many times the median number of examples, as
            a site can claim any number. The stricter of this and the federation's counts.
        seed: Seeds the draws for `participation` and of `selector`.
        on_event: Called with each event.

    >>> import numpy as np
    >>> with join("memory://doc-join", "site-a") as federation:
    ...     params = federation.step({"w": np.ones(2)}, examples=100)
    >>> params["w"]
    array([1., 1.])
    """
    if mode not in ("async", "sync"):
        raise FederationError(f"mode is 'async' or 'sync', not {mode!r}")
    if mode == "async" and not (members is None and quorum is None and deadline is None):
        raise FederationError(
            'members=, quorum= and deadline= go with mode="sync": async waits for nobody'
        )
    if peers not in ("new", "all"):
        raise FederationError(f"peers is 'new' or 'all', not {peers!r}")
    if mode == "sync" and peers != "new":
        raise FederationError('peers= goes with mode="async": a round includes who delivered')
    if members is not None:
        check_members(members)
    if quorum is not None:
        whole("quorum", quorum, least=1)
    waits = number("deadline", 600.0 if deadline is None else deadline, above=0, most=_YEARS)
    patience = number("patience", patience, least=0, most=_YEARS)
    check_bucket(url, endpoint, options, is_store=isinstance(url, Store))
    if model is not None:
        # nothing is written where there is nothing to share
        shared_names(model, share)
    if examples is not None and optimizer is None:
        raise FederationError(
            "examples= goes with optimizer=; step(..., examples=...) takes its own"
        )
    if examples is not None:
        whole_examples(examples)
    if ledger is not None and private is None:
        raise FederationError("ledger= goes with private=: without it nothing is given away")
    if optimizer is not None and (model is None or isinstance(model, Mapping)):
        raise FederationError("optimizer= needs model=, the module that it trains")
    if (selector is None) != (cohort is None):
        raise FederationError("selector= and cohort= go together: who is picked, and how many")
    if selector is None and unpicked is not None:
        raise FederationError("unpicked= goes with selector=: without one everybody takes part")
    clock = clock or SystemClock()
    terms = Terms(
        client=client,
        strategy=FedAvg() if strategy is None else strategy,
        share=share,
        every=every,
        participation=participation,
        seed=seed,
        limit=limit,
        outweigh=outweigh,
        selection=None if selector is None or cohort is None else Selection(selector, cohort, seed),
        unpicked=unpicked or ("wait" if mode == "sync" else "train"),
        private=private,
        ledger=None if ledger is None else Path(ledger),
        listeners=listeners_of(on_event),
        clock=clock,
    )

    def begin() -> Federation:
        opened = url if isinstance(url, Store) else open_store(url, endpoint, options)
        member = Member(Reliable(opened, patience, clock), terms)
        how: Mode
        if mode == "async":
            how = Asynchronous(member, peers)
        else:
            how = Synchronous(member, Quorum.of(members, quorum, client, cohort), waits)
        return Federation(member, how)

    federation = among_ranks(terms, mode, begin) if several() else begin()
    if model is not None:
        federation.start(model)
    if model is not None and optimizer is not None:
        federation.attach(model, optimizer, examples)
    return federation
