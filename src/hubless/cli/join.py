"""Taking part without a line of code: `hubless join`."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hubless.cli.parsing import URL, add_bucket, add_command, bucket_settings
from hubless.errors import FederationError, HublessError, printable

if TYPE_CHECKING:
    from hubless.events import Event
    from hubless.federate.federation import Federation
    from hubless.federate.pace import Anytime, Rounds
    from hubless.federate.picking.draw import Selection
    from hubless.federate.picking.participation import Participation
    from hubless.federate.script.hook import FirstOptimizer
    from hubless.strategy.base import Strategy

_JOIN = """Run a torch training script, unchanged, as a member of a federation. From the first
optimizer that takes a step on, what it trains is shared at every --every steps, whenever it saves
the model (so that the file holds the federation's) and once more when it ends. Options that are not
known here go to the script, and so does everything after --. Start it again under the same name
after a crash and it goes on with the federation's params. Several processes of one site are one
member: hubless join [options] URL -- torchrun [its options] SCRIPT [arguments...]."""

_NEVER = """{script} never took a step of a torch optimizer in this process, so there was nothing to
share: join suits scripts that train with torch.optim, in one process or in those of torchrun
(hubless join {url} -- torchrun ...). Others take part with three lines of their own:
    federation = hubless.join({url!r}, client={client!r})
    ... train ...
    params = federation.step({{"weights": weights}}, examples=len(data))"""


def add_join(commands: Any) -> None:
    """Add `join`."""
    join = add_command(
        commands,
        "join",
        _join,
        help="run a torch script, unchanged, as a member of a federation",
        description=_JOIN,
        usage="hubless join [options] URL SCRIPT [arguments...]",
    )
    join.words_before_script = 2
    add = join.add_argument
    add("url", metavar="URL", help=URL)
    add("script", metavar="SCRIPT", type=Path, help="the script that trains")
    add("--client", help="this site's name ($HUBLESS_CLIENT, or the name of this machine)")
    add("--every", type=_whole, default=100, metavar="N", help="optimizer steps between (100)")
    add(
        "--examples",
        type=_whole,
        metavar="N",
        help="how many examples this site trains on: its weight (counted from its batches)",
    )
    add("--members", help="meet in rounds of so many, or of these: a,b,c; else nobody waits")
    add("--quorum", type=_whole, metavar="N", help="how many updates are enough at the deadline")
    add("--deadline", metavar="SECONDS", help="in rounds, how long to wait (600), or adaptive")
    add("--peers", choices=("new", "all"), help="without rounds: take in news, or all each time")
    add("--strategy", default="FedAvg", help="how updates are combined: FedAvg, FedAdam...")
    add(
        "--share",
        action="append",
        metavar="PATTERN",
        help="names to share, such as 'encoder.*', the rest stays private; may be given again",
    )
    add("--selector", help="who takes part: uniform, activity:sqrt, file.py:name...")
    add("--cohort", type=_whole, metavar="K", help="with --selector, how many take part")
    add("--participation", type=float, metavar="C", help="take part with this probability")
    add("--events", type=Path, metavar="FILE", help="append what happens to this file")
    add_bucket(join)


def _join(options: argparse.Namespace) -> int:
    from hubless.cli.progress import Progress, warnings_apart
    from hubless.cli.script import check_events, check_script, run_script
    from hubless.cli.torchrun import launch
    from hubless.federate.script.hook import FirstOptimizer, watching

    if options.script.name == "torchrun" and not options.script.is_file():
        return launch(options)
    check_script(options.script)
    if options.events is not None:
        check_events(options.events)
    ending = _Ending()
    with ExitStack() as stack:
        stack.enter_context(warnings_apart())
        federation = _member(options, [Progress(), ending])
        stack.callback(federation.close)
        hook = FirstOptimizer(federation, every=options.every, examples=options.examples, say=_say)
        with watching(hook):
            code = run_script(options.script, options.arguments)
        # what a script that failed has left behind is nothing to share
        if code == 0:
            code = _last_step(options, hook, ending)
            _say_which_is_which(options.url, hook.files)
    sys.stdout.flush()
    if options.json and federation.rank == 0:
        document = {"client": federation.client, "url": federation.store.url, "exit": code}
        print(json.dumps({**document, "steps": hook.steps, "version": federation.version}))
    return code


def _member(options: argparse.Namespace, listeners: list[Any]) -> Federation:
    """Join at once: a wrong address or name should not be found out after hours of loading."""
    import hubless

    client, origin = _client(options.client)
    words = " ".join([str(options.script), *options.arguments])
    _say(f"runs {words} as client {client} ({origin})")
    federation = hubless.join(
        hubless.Bucket(options.url, options.endpoint, bucket_settings(options)),
        client,
        pace=_pace(options),
        who=_who(options),
        strategy=_strategy(options.strategy),
        share=options.share,
        events=[*listeners, *([options.events] if options.events else [])],
    )
    selection = federation.terms.selection
    if selection is not None and selection.by_value:
        federation.close()
        raise FederationError(
            f"{options.selector} goes by what training each member is worth, which a script that "
            "knows nothing of it cannot say: call hubless.join in the script and give "
            "step(..., valuation=...)"
        )
    return federation


def _last_step(options: argparse.Namespace, hook: FirstOptimizer, ending: _Ending) -> int:
    """Share what was trained last; 3 where that did not work out, as the script itself did."""
    if hook.model is None and hook.failure is None:
        client = hook.federation.client
        raise FederationError(_NEVER.format(script=options.script, url=options.url, client=client))
    if hook.failure is not None:
        raise hook.failure
    ending.begun = True
    try:
        hook.finish()
    except HublessError as error:
        ending.trouble = str(error)
    if ending.trouble is None:
        return 0
    _say(f"the script is done, but what it trained last was not shared: {ending.trouble}")
    return 3


def _say_which_is_which(url: str, files: Mapping[str, bool]) -> None:
    """What the script has saved, as far as that is known, and where the federation's model is."""
    met = [file for file, is_federations in files.items() if is_federations]
    own = [file for file, is_federations in files.items() if not is_federations]
    if met:
        _say(f"{_few(met)}: the federation's model, as it was when that was saved")
    if own or not met:
        _say(f"{_few(own) or 'what the script wrote, if anything'}: this site's own model")
    _say(f"the federation's model as it is now: hubless pull {url} -o model.safetensors")


def _few(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return ", ".join(files[-3:]) + more


class _Ending:
    """A listener that notices whether the last step reached the store."""

    def __init__(self) -> None:
        self.begun = False
        self.trouble: str | None = None

    def __call__(self, event: Event) -> None:
        from hubless.events import Offline

        if self.begun and isinstance(event, Offline):
            self.trouble = event.reason


def _client(given: str | None) -> tuple[str, str]:
    """This site's name, and where it comes from."""
    if given is not None:
        return given, "--client"
    if named := os.environ.get("HUBLESS_CLIENT"):
        return named, "HUBLESS_CLIENT"
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != os.environ.get("WORLD_SIZE", "1"):
        raise FederationError("a site of several machines needs a name: --client")
    machine = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname())[:64].strip("-")
    return machine or "client", "the name of this machine; --client gives another"


def _strategy(name: str) -> Strategy:
    from hubless.strategy import kinds

    strategies = {kind.lower(): strategy for kind, strategy in kinds().items()}
    if name.lower() not in strategies:
        raise FederationError(
            f"there is no strategy {name!r}: there are {', '.join(sorted(kinds()))}"
        )
    # each of the named ones can be made without settings
    return cast("Callable[[], Strategy]", strategies[name.lower()])()


def _pace(options: argparse.Namespace) -> Anytime | Rounds:
    """In rounds where it is said whom to wait for; else nobody waits."""
    import hubless

    members, seconds = options.members, options.deadline
    if members is None and options.quorum is None:
        if seconds is not None:
            raise FederationError(
                "--deadline goes with --members or --quorum: without them nobody waits"
            )
        return hubless.Anytime(options.peers or "new")
    if options.peers is not None:
        raise FederationError("--peers goes without rounds: a round includes who delivered")
    if members is not None:
        names = [name.strip() for name in members.split(",")]
        members = int(members) if members.isdecimal() else names
    if seconds == "adaptive":
        return hubless.Rounds(members, options.quorum, hubless.Adaptive())
    try:
        deadline = 600.0 if seconds is None else float(seconds)
    except ValueError:
        raise FederationError(
            f"--deadline is a number of seconds, or adaptive, not {seconds!r}"
        ) from None
    return hubless.Rounds(members, options.quorum, deadline)


def _who(options: argparse.Namespace) -> Selection | Participation | None:
    if (options.selector is None) != (options.cohort is None):
        raise FederationError("--selector and --cohort go together: who is picked, and how many")
    import hubless
    from hubless.select.naming import named

    if options.participation is not None:
        if options.selector is not None:
            raise FederationError("--participation and --selector both say who: leave one out")
        return hubless.Participation(options.participation)
    if options.selector is None:
        return None
    return hubless.Selection(named(options.selector), options.cohort)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _say(line: str) -> None:
    # of several processes of a site, the first one speaks
    if os.environ.get("RANK", "0") == "0":
        print(f"hubless join: {printable(line)}", file=sys.stderr, flush=True)
