"""What each kind of event says of a federation: a function for each kind."""

from __future__ import annotations

from dataclasses import replace

from hubless.watch.fold import strip
from hubless.watch.fold.federation import FederationFold, round_of
from hubless.watch.fold.member import MemberFold
from hubless.watch.fold.run import HeardEvent, handles
from hubless.watch.values import count, items, mapping, numbers, positive, text, whole

_FORGED = 5 * 10**7
"""No honest member's sequence reaches this: what lies under a key with it is somebody else's."""
_STALENESS = 10_000
_NAMES = 5000
_MARKED = 256


@handles("joined")
def _joined(run: FederationFold, event: HeardEvent) -> None:
    life = text(event.record.get("incarnation"))
    member = run.members.get(event.client)
    if member is not None and life and life == member.life:
        # told by the member and by its store
        return
    was_there = member is not None and member.life != "" and member.status != "left"
    if event.record.get("mode") == "sync":
        run.turn_to_rounds()
    member = run.own(event, "restarted" if was_there else "joined")
    if member is None:
        return
    member.life = life
    number = int(life[:4]) if life[:4].isascii() and life[:4].isdigit() else 0
    member.lives = max(member.lives + 1, number)
    for name in ("url", "mode"):
        if value := text(event.record.get(name), 200):
            run.notes[name] = value


@handles("sharing")
def _sharing(run: FederationFold, event: HeardEvent) -> None:
    if run.own(event):
        arrays, size = count(event.record.get("arrays")), count(event.record.get("bytes"))
        run.notes["shared of the model"] = f"{arrays:,} arrays, {size:,} bytes"


@handles("pushed")
def _pushed(run: FederationFold, event: HeardEvent) -> None:
    sequence, round_ = whole(event.record.get("sequence")), round_of(event)
    if sequence is None or not 0 <= sequence < _FORGED:
        return
    metrics = {n: v for n, v in numbers(event.record.get("metrics")).items() if v is not None}
    member = run.members.get(event.client)
    if member is not None and sequence <= member.sequence:
        # told by the member and by its store, or late: either may know more
        run.draw(event, metrics, sequence, round_)
        return
    if round_ is not None:
        run.turn_to_rounds()
        run.reach(round_)
    member = run.own(event, "training" if round_ is None else "waiting")
    if member is None:
        return
    # those that came before anybody looked are counted too: numbers in keys tell of them
    new = sequence - member.sequence
    if member.pushed and event.time > member.pushed:
        member.gaps.append((event.time - member.pushed) / new)
    _mark_all(run, event, round_, new, member.pushed or member.began)
    size = count(event.record.get("bytes")) * new
    run.updates += new
    run.bytes_up += size
    member.updates, member.sent = member.updates + new, member.sent + size
    member.pushed, member.sequence = event.time, sequence
    member.pushed_round = -1 if round_ is None else round_
    examples = whole(event.record.get("examples"))
    member.examples = None if examples is None else max(0, examples)
    run.draw(event, metrics, sequence, round_)


def _mark_all(
    run: FederationFold, event: HeardEvent, round_: int | None, new: int, since: float
) -> None:
    """Draw an update, and those since the last one seen that nobody saw: each in its round.

    Where there are no rounds, they are taken to lie evenly in between.
    """
    apart = max(0.0, event.time - since) / new
    for back in reversed(range(min(new, _MARKED))):
        at = None if round_ is None else round_ - back
        if at is None or at >= 0:
            earlier = replace(event, time=event.time - back * apart)
            run.mark(event.client, earlier, strip.TRAINED, at)


@handles("pulled")
def _pulled(run: FederationFold, event: HeardEvent) -> None:
    member = run.own(event, "training")
    if member is None:
        return
    member.version = count(event.record.get("version"))
    received = count(event.record.get("bytes"))
    member.received = (member.received or 0) + received
    run.bytes_down += received
    run.phases["taking in updates"] += positive(event.record.get("seconds"))
    for peer, versions in list(mapping(event.record.get("staleness")).items())[:_NAMES]:
        behind = whole(versions)
        if behind is None:
            continue
        if behind in run.staleness or len(run.staleness) < _STALENESS:
            run.staleness[behind] += 1
        if peer in run.members and (other := run.other(event, peer)):
            other.staleness = max(0, behind)


@handles("nothing")
def _nothing(run: FederationFold, event: HeardEvent) -> None:
    if member := run.own(event, "training"):
        member.version = count(event.record.get("version"))


@handles("picked")
def _picked(run: FederationFold, event: HeardEvent) -> None:
    cohort = list(map(text, items(event.record.get("cohort"))[:_NAMES]))
    run.reach(whole(event.record.get("round")) if run.in_rounds else None)
    # where there are no rounds, whom a member draws besides itself hear nothing of it
    for name in cohort if run.in_rounds else [event.client] * (event.client in cohort):
        run.other(event, name, "training")


@handles("skipped")
def _skipped(run: FederationFold, event: HeardEvent) -> None:
    if member := run.own(event, "idle"):
        member.skipped += 1
        round_ = whole(event.record.get("round"))
        run.reach(round_)
        run.mark(event.client, event, strip.SKIPPED, round_)


@handles("waiting")
def _waiting(run: FederationFold, event: HeardEvent) -> None:
    run.turn_to_rounds()
    round_ = count(event.record.get("round"))
    run.reach(round_)
    if run.own(event, "waiting") is None:
        return
    run.mark(event.client, event, strip.WAITED, round_)
    missing = list(map(text, items(event.record.get("missing"))[:_NAMES]))
    # "2 not seen yet" stands for members without a name
    if any(name in run.members for name in missing):
        run.notes["waiting for"] = ", ".join(missing[:20])


@handles("late")
def _late(run: FederationFold, event: HeardEvent) -> None:
    run.turn_to_rounds()
    round_ = count(event.record.get("round"))
    run.reach(round_)
    if run.other(event, event.client, "late") and run.is_news("late", event.client, str(round_)):
        run.mark(event.client, event, strip.LATE, round_)
        run.wrong(event.client, event, f"round {round_} was closed without it")


@handles("closed")
def _closed(run: FederationFold, event: HeardEvent) -> None:
    run.turn_to_rounds()
    round_ = whole(event.record.get("round"))
    if round_ is None or not 0 <= round_ < _FORGED:
        return
    run.reach(round_)
    run.notes.pop("waiting for", None)
    sequences = mapping(event.record.get("sequences"))
    for name in map(text, items(event.record.get("included"))[:_NAMES]):
        member = run.other(event, name)
        if member is None:
            continue
        if member.status == "waiting":
            member.turn("training", event.arrival or event.time)
        if round_ > member.last_round:
            _take_part(member, round_, whole(sequences.get(name)))
            run.mark(name, event, strip.TRAINED, round_, again=True)
    if not event.alone:
        run.go_on_after(round_)
    if run.own(event, "training") and run.is_news("closed", event.client, str(round_)):
        run.phases["rounds, with waiting"] += positive(event.record.get("seconds"))
    if round_ + 1 > run.round:
        run.round = round_ + 1
        run.pace(event.time)


def _take_part(member: MemberFold, round_: int, sequence: int | None) -> None:
    """Count a round, and those since the last that only the numbers in keys still tell of."""
    rounds = 1
    if sequence is not None:
        unseen = min(sequence - member.last_included, round_ - member.last_round)
        rounds, member.last_included = max(1, unseen), sequence
    member.rounds += rounds
    member.last_round = round_


@handles("refused")
def _refused(run: FederationFold, event: HeardEvent) -> None:
    peer, key = text(event.record.get("peer")) or event.client, text(event.record.get("key"), 300)
    # every member refuses it, each for itself
    if not run.is_news("refused", peer, key):
        return
    reason = text(event.record.get("reason"), 400)
    if run.other(event, peer, "refused"):
        run.mark(peer, event, strip.REFUSED, round_of(event))
        run.wrong(peer, event, reason)
    else:
        run.wrong(event.client, event, f"it says of {peer}: {reason}")


@handles("forged")
def _forged(run: FederationFold, event: HeardEvent) -> None:
    peer = text(event.record.get("peer"))
    reason = f"{text(event.record.get('key'), 150)}: {text(event.record.get('reason'), 200)}"
    if run.other(event, peer):
        run.mark(peer, event, strip.WRONG, round_of(event))
        run.wrong(peer, event, reason)
    else:
        run.wrong(event.client, event, f"it says of {peer}: {reason}")


@handles("impostor")
def _impostor(run: FederationFold, event: HeardEvent) -> None:
    if run.own(event):
        run.mark(event.client, event, strip.WRONG, round_of(event))
        key, reason = text(event.record.get("key"), 150), text(event.record.get("reason"), 200)
        run.wrong(event.client, event, f"{key}: {reason}")


@handles("offline")
def _offline(run: FederationFold, event: HeardEvent) -> None:
    if run.own(event, "offline"):
        run.mark(event.client, event, strip.OFFLINE)
    run.wrong(event.client, event, text(event.record.get("reason"), 400))


@handles("left")
def _left(run: FederationFold, event: HeardEvent) -> None:
    run.own(event, "left")
