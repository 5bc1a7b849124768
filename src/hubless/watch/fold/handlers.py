"""What each kind of event says of a federation: a function for each kind."""

from __future__ import annotations

from dataclasses import replace

from hubless.watch.fold import strip
from hubless.watch.fold.federation import FederationFold, round_of
from hubless.watch.fold.member import MemberFold
from hubless.watch.fold.run import Told, handles
from hubless.watch.values import count, items, mapping, numbers, positive, text, whole

_FORGED = 5 * 10**7
"""No honest member's sequence reaches this: what lies under a key with it is somebody else's."""
_STALENESS = 10_000
_NAMES = 5000
_MARKED = 256


@handles("joined")
def _joined(run: FederationFold, told: Told) -> None:
    life = text(told.record.get("incarnation"))
    known = run.members.get(told.client)
    if known is not None and life and life == known.life:
        # told by the member and by its store
        return
    was_there = known is not None and known.life != "" and known.status != "left"
    if told.record.get("mode") == "sync":
        run.turn_to_rounds()
    member = run.own(told, "restarted" if was_there else "joined")
    if member is None:
        return
    member.life = life
    number = int(life[:4]) if life[:4].isascii() and life[:4].isdigit() else 0
    member.lives = max(member.lives + 1, number)
    for name in ("url", "mode"):
        if said := text(told.record.get(name), 200):
            run.notes[name] = said


@handles("sharing")
def _sharing(run: FederationFold, told: Told) -> None:
    if run.own(told):
        arrays, size = count(told.record.get("arrays")), count(told.record.get("bytes"))
        run.notes["shared of the model"] = f"{arrays:,} arrays, {size:,} bytes"


@handles("pushed")
def _pushed(run: FederationFold, told: Told) -> None:
    sequence, round_ = whole(told.record.get("sequence")), round_of(told)
    if sequence is None or not 0 <= sequence < _FORGED:
        return
    metrics = {n: v for n, v in numbers(told.record.get("metrics")).items() if v is not None}
    known = run.members.get(told.client)
    if known is not None and sequence <= known.sequence:
        # told by the member and by its store, or late: either may know more
        run.draw(told, metrics, sequence, round_)
        return
    if round_ is not None:
        run.turn_to_rounds()
        run.reach(round_)
    member = run.own(told, "training" if round_ is None else "waiting")
    if member is None:
        return
    # those that came before anybody looked are counted too: numbers in keys tell of them
    new = sequence - member.sequence
    if member.pushed and told.time > member.pushed:
        member.gaps.append((told.time - member.pushed) / new)
    _mark_all(run, told, round_, new, member.pushed or member.began)
    size = count(told.record.get("bytes")) * new
    run.updates += new
    run.bytes_up += size
    member.updates, member.sent = member.updates + new, member.sent + size
    member.pushed, member.sequence = told.time, sequence
    member.pushed_round = -1 if round_ is None else round_
    examples = whole(told.record.get("examples"))
    member.examples = None if examples is None else max(0, examples)
    run.draw(told, metrics, sequence, round_)


def _mark_all(run: FederationFold, told: Told, round_: int | None, new: int, since: float) -> None:
    """Draw an update, and those since the last one seen that nobody saw: each in its round.

    Where there are no rounds, they are taken to lie evenly in between.
    """
    apart = max(0.0, told.time - since) / new
    for back in reversed(range(min(new, _MARKED))):
        at = None if round_ is None else round_ - back
        if at is None or at >= 0:
            run.mark(told.client, replace(told, time=told.time - back * apart), strip.TRAINED, at)


@handles("pulled")
def _pulled(run: FederationFold, told: Told) -> None:
    member = run.own(told, "training")
    if member is None:
        return
    member.version = count(told.record.get("version"))
    received = count(told.record.get("bytes"))
    member.received = (member.received or 0) + received
    run.bytes_down += received
    run.phases["taking in updates"] += positive(told.record.get("seconds"))
    for peer, versions in list(mapping(told.record.get("staleness")).items())[:_NAMES]:
        behind = whole(versions)
        if behind is None:
            continue
        if behind in run.staleness or len(run.staleness) < _STALENESS:
            run.staleness[behind] += 1
        if peer in run.members and (other := run.other(told, peer)):
            other.staleness = max(0, behind)


@handles("nothing")
def _nothing(run: FederationFold, told: Told) -> None:
    if member := run.own(told, "training"):
        member.version = count(told.record.get("version"))


@handles("picked")
def _picked(run: FederationFold, told: Told) -> None:
    cohort = list(map(text, items(told.record.get("cohort"))[:_NAMES]))
    run.reach(whole(told.record.get("round")) if run.in_rounds else None)
    # where there are no rounds, whom a member draws besides itself hear nothing of it
    for name in cohort if run.in_rounds else [told.client] * (told.client in cohort):
        run.other(told, name, "training")


@handles("skipped")
def _skipped(run: FederationFold, told: Told) -> None:
    if member := run.own(told, "idle"):
        member.skipped += 1
        round_ = whole(told.record.get("round"))
        run.reach(round_)
        run.mark(told.client, told, strip.SKIPPED, round_)


@handles("waiting")
def _waiting(run: FederationFold, told: Told) -> None:
    run.turn_to_rounds()
    round_ = count(told.record.get("round"))
    run.reach(round_)
    if run.own(told, "waiting") is None:
        return
    run.mark(told.client, told, strip.WAITED, round_)
    missing = list(map(text, items(told.record.get("missing"))[:_NAMES]))
    # "2 not seen yet" stands for members without a name
    if any(name in run.members for name in missing):
        run.notes["waiting for"] = ", ".join(missing[:20])


@handles("late")
def _late(run: FederationFold, told: Told) -> None:
    run.turn_to_rounds()
    round_ = count(told.record.get("round"))
    run.reach(round_)
    if run.other(told, told.client, "late") and run.is_news("late", told.client, str(round_)):
        run.mark(told.client, told, strip.LATE, round_)
        run.wrong(told.client, told, f"round {round_} was closed without it")


@handles("closed")
def _closed(run: FederationFold, told: Told) -> None:
    run.turn_to_rounds()
    round_ = whole(told.record.get("round"))
    if round_ is None or not 0 <= round_ < _FORGED:
        return
    run.reach(round_)
    run.notes.pop("waiting for", None)
    sequences = mapping(told.record.get("sequences"))
    for name in map(text, items(told.record.get("included"))[:_NAMES]):
        member = run.other(told, name)
        if member is None:
            continue
        if member.status == "waiting":
            member.turn("training", told.seen or told.time)
        if round_ > member.last_round:
            _take_part(member, round_, whole(sequences.get(name)))
            run.mark(name, told, strip.TRAINED, round_, again=True)
    if not told.alone:
        run.go_on_after(round_)
    if run.own(told, "training") and run.is_news("closed", told.client, str(round_)):
        run.phases["rounds, with waiting"] += positive(told.record.get("seconds"))
    if round_ + 1 > run.round:
        run.round = round_ + 1
        run.pace(told.time)


def _take_part(member: MemberFold, round_: int, sequence: int | None) -> None:
    """Count a round, and those since the last that only the numbers in keys still tell of."""
    rounds = 1
    if sequence is not None:
        unseen = min(sequence - member.last_included, round_ - member.last_round)
        rounds, member.last_included = max(1, unseen), sequence
    member.rounds += rounds
    member.last_round = round_


@handles("refused")
def _refused(run: FederationFold, told: Told) -> None:
    peer, key = text(told.record.get("peer")) or told.client, text(told.record.get("key"), 300)
    # every member refuses it, each for itself
    if not run.is_news("refused", peer, key):
        return
    reason = text(told.record.get("reason"), 400)
    if run.other(told, peer, "refused"):
        run.mark(peer, told, strip.REFUSED, round_of(told))
        run.wrong(peer, told, reason)
    else:
        run.wrong(told.client, told, f"it says of {peer}: {reason}")


@handles("forged")
def _forged(run: FederationFold, told: Told) -> None:
    peer = text(told.record.get("peer"))
    reason = f"{text(told.record.get('key'), 150)}: {text(told.record.get('reason'), 200)}"
    if run.other(told, peer):
        run.mark(peer, told, strip.WRONG, round_of(told))
        run.wrong(peer, told, reason)
    else:
        run.wrong(told.client, told, f"it says of {peer}: {reason}")


@handles("impostor")
def _impostor(run: FederationFold, told: Told) -> None:
    if run.own(told):
        run.mark(told.client, told, strip.WRONG, round_of(told))
        key, reason = text(told.record.get("key"), 150), text(told.record.get("reason"), 200)
        run.wrong(told.client, told, f"{key}: {reason}")


@handles("offline")
def _offline(run: FederationFold, told: Told) -> None:
    if run.own(told, "offline"):
        run.mark(told.client, told, strip.OFFLINE)
    run.wrong(told.client, told, text(told.record.get("reason"), 400))


@handles("left")
def _left(run: FederationFold, told: Told) -> None:
    run.own(told, "left")
