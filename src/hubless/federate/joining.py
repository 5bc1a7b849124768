"""Joining a federation: the one call that a training script needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hubless.checks import shown
from hubless.errors import FederationError
from hubless.events import Listeners, listeners_of
from hubless.federate.federation import Federation, Hookable
from hubless.federate.fold import OUTWEIGH
from hubless.federate.member import Member
from hubless.federate.model import Model, shared_names
from hubless.federate.pace import Anytime, Rounds
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.participation import Participation
from hubless.federate.ranks import among_ranks, several
from hubless.federate.terms import Terms
from hubless.params import whole_examples
from hubless.patience import Clock, SystemClock
from hubless.privacy.mechanisms import Mechanism
from hubless.store.base import Store
from hubless.store.bucket import Bucket
from hubless.strategy.base import Strategy
from hubless.strategy.fedavg import FedAvg


def join(
    where: str | Path | Store | Bucket,
    client: str,
    *,
    pace: Anytime | Rounds | None = None,
    who: Selection | Participation | None = None,
    strategy: Strategy | None = None,
    model: Model | None = None,
    optimizer: Hookable | None = None,
    examples: int | None = None,
    every: int = 1,
    share: Sequence[str] | None = None,
    private: Mechanism | None = None,
    ledger: str | Path | None = None,
    limit: float | None = None,
    outweigh: float = OUTWEIGH,
    events: Listeners = (),
    clock: Clock | None = None,
) -> Federation:
    """Join the federation that meets in a folder or bucket, under a name of one's own.

    Args:
        where: A folder, `s3://bucket/run`, `gs://...`, `az://...`, or a store of your own. A
            `Bucket` says more: a server of your own, its settings, and how patient to be.
        client: This site's name. Join again under it after a crash and go on where you were.
        pace: How members meet. `Anytime()`, the usual one: nobody waits. `Rounds(members=...)`:
            they wait for each other, and all end a round with the same bytes.
        who: Who takes part. Everybody if not given; `Selection(selector, cohort)`: who is picked;
            `Participation(0.5)`: by chance. Who does not take part trains on.
        strategy: How updates are combined; `FedAvg()` if not given. At any time each member may
            have its own; in rounds all need the same.
        model: A torch module, or a dict of tensors. Checked at once against what the others
            train, and loaded with the federation's params (or the first member's, to begin with).
            A dict of arrays is checked here and loaded with `federation.pull`.
        optimizer: A torch optimizer: federate from its steps, leaving the loop untouched.
        examples: With `optimizer`, how many examples this site trains on between two updates;
            counted from the batches that the module is called with if not given.
        every: Federate at every n-th step or call only.
        share: Patterns of parameter names to share (`["encoder.*"]`); the rest stays private.
        private: A mechanism of `hubless.privacy` that the valuations of `step` pass
            through before anybody sees them. What they cost goes by the events.
        ledger: With `private`, the file on this site's own disk that remembers what was given
            away over restarts; below `$HUBLESS_STATE` or `~/.local/state/hubless` if not given. A
            site without one counts by its traces in the store, which whoever runs that can
            delete: one report for each update it is known to have shared, and one more for each
            predecessor. The larger of the two counts.
        limit: Peers' params with a larger root mean square are refused as diverged; a million if
            not given. If the federation has a limit, too, the stricter one is used.
        outweigh: An update counts for at most this many times the median number of examples, as
            a site can claim any number. If the federation has another, the stricter one is used.
        events: A function that is called with each event, a file to which each is appended as a
            line of JSON, or a list of these.
        clock: What tells the time, for tests.

    >>> import numpy as np
    >>> with join("memory://doc-join", "site-a") as federation:
    ...     params = federation.step({"w": np.ones(2)}, examples=100)
    >>> params["w"]
    array([1., 1.])
    """
    bucket, pace, clock = Bucket.at(where), pace or Anytime(), clock or SystemClock()
    if not isinstance(pace, Anytime | Rounds):
        raise FederationError(f"pace= takes Anytime() or Rounds(members=...), not {shown(pace)}")
    if model is not None:
        # nothing is written where there is nothing to share
        shared_names(model, share)
    if optimizer is not None and (model is None or isinstance(model, Mapping)):
        raise FederationError("optimizer= needs model=, the module that it trains")
    if examples is not None and optimizer is None:
        raise FederationError(
            "examples= goes with optimizer=; step(..., examples=...) takes its own"
        )
    if examples is not None:
        whole_examples(examples)
    if ledger is not None and private is None:
        raise FederationError("ledger= goes with private=: without it nothing is given away")
    terms = Terms(
        client=client,
        strategy=FedAvg() if strategy is None else strategy,
        who=who,
        share=share,
        every=every,
        limit=limit,
        outweigh=outweigh,
        private=private,
        ledger=None if ledger is None else Path(ledger),
        listeners=listeners_of(events),
        clock=clock,
    )

    def begin() -> Federation:
        member = Member(bucket.open(clock), terms)
        return Federation(member, pace.among(member))

    federation = among_ranks(terms, pace.mode, begin) if several() else begin()
    if model is not None:
        federation.start(model)
    if model is not None and optimizer is not None:
        federation.attach(model, optimizer, examples)
    return federation
