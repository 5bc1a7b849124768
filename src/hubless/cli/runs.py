"""Runs, from their first line to their report: `hubless new`, `run`, `watch`, `report`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hubless.checks import folder_of
from hubless.cli.parsing import add_bucket, add_command, bucket_settings, needing
from hubless.cli.printing import in_bytes, in_json
from hubless.errors import HublessError

EVENTS = "events.jsonl"
_DAY = 24 * 3600
_LAST_PORT = 65535
_TEMPLATES = Path(__file__).parent / "templates"

_RUN = """Run a script as Python would, and keep what its simulations and federations say in a
folder that `hubless watch` and `hubless report` read. Options that are not known here go to the
script, and so does everything after --. With a study's settings, run the study: what is finished
is not run again, options go to the study, and 3 says that something is left to do."""

_WATCH = """Show how a run or a federation is getting on, while it does: in this terminal, or with
--web in a browser. What does not exist yet is waited for, unless with --once. Nothing is ever
written to what is watched."""

_SOURCE = "a run's folder or file of events, or a federation's folder or bucket"


def add_runs(commands: Any) -> None:
    """Add `new` and `run`."""
    new = add_command(commands, "new", _new, help="write a script to start from")
    new.add_argument(
        "file", nargs="?", type=Path, help="where to (simulate.py or federate.py if not given)"
    )
    new.add_argument("--kind", choices=("simulate", "federate"), default="simulate")
    new.add_argument("--force", action="store_true", help="overwrite a file that is there")
    run = add_command(
        commands,
        "run",
        _run,
        help="run a script or a study, and keep what it says",
        description=_RUN,
        usage="hubless run [--out DIR] [--json] [--traceback] FILE [arguments...]",
    )
    run.words_before_script = 1
    run.add_argument("file", metavar="FILE", type=Path, help="a .py script, or a study's .toml")
    run.add_argument(
        "--out", type=Path, help="the folder to keep it in (runs/NAME-DATE; a study: runs/NAME)"
    )


def add_views(commands: Any) -> None:
    """Add `watch` and `report`."""
    watch = add_command(
        commands, "watch", _watch, help="follow a run or a federation", description=_WATCH
    )
    watch.add_argument("source", metavar="SOURCE", help=_SOURCE)
    watch.add_argument("--web", action="store_true", help="as a page for browsers")
    watch.add_argument("--host", help="with --web, where to listen (only this machine)")
    watch.add_argument("--port", type=_port, help="with --web, on which port (8642; 0 is any)")
    watch.add_argument("--token", help="with --web, what viewers have to show")
    watch.add_argument("--interval", type=_seconds, default=1.0, help="seconds between looks")
    watch.add_argument("--once", action="store_true", help="only what is there now")
    add_bucket(watch)
    report = add_command(
        commands, "report", _report, help="make one HTML page of one run or several to compare"
    )
    report.add_argument("sources", metavar="SOURCE", nargs="+", help=f"{_SOURCE}, or a study's")
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    report.add_argument("--no-pictures", action="store_true", help="only the page, no PNG files")
    add_bucket(report)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= _DAY:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, and at most a day ({_DAY})")
    return seconds


def _port(text: str) -> int:
    if not 0 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no port, from 0 to {_LAST_PORT}")
    return int(text)


def _new(options: argparse.Namespace) -> int:
    file: Path = options.file or Path(f"{options.kind}.py")
    if file.is_dir():
        raise HublessError(f"cannot write {file}: it is a folder, give a file's name")
    text = (_TEMPLATES / f"{options.kind}.py").read_text(encoding="utf-8")
    try:
        with open(file, "w" if options.force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise HublessError(f"{file} is there already: --force overwrites it") from None
    except OSError as error:
        raise HublessError(f"cannot write {file}: {error.strerror}") from error
    if options.json:
        print(json.dumps({"file": str(file), "kind": options.kind}))
    else:
        print(f"wrote {file}\nrun it with: hubless run {file}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from hubless.cli.script import check_script

    check_script(options.file)
    return _run_study(options) if options.file.suffix == ".toml" else _run_file(options)


def _run_study(options: argparse.Namespace) -> int:
    from hubless.cli.script import exit_code

    with needing("simulate", "run"):
        from hubless.study.continual import main
    out = options.out or Path("runs") / options.file.stem
    folder_of("--out", out, error=HublessError)
    try:
        # options stand before the settings, so that one that lacks its value is noticed
        code = main([*options.arguments, "--out", str(out), str(options.file)])
    except SystemExit as leaving:
        code = exit_code(leaving)
    if options.json:
        print(json.dumps({"out": str(out), "exit": code}))
    return code


def _run_file(options: argparse.Namespace) -> int:
    from hubless.cli.progress import Progress, warnings_apart
    from hubless.cli.script import run_script
    from hubless.events import listening, to_file

    given: Path | None = options.out
    out = _folder(given if given is not None else _fresh(options.file.stem), given is not None)
    progress, code = Progress(), 1
    try:
        with listening(to_file(out / EVENTS)), listening(progress), warnings_apart():
            code = run_script(options.file, options.arguments)
        return code
    except KeyboardInterrupt:
        code = 130
        return code
    finally:
        sys.stdout.flush()
        _close(options, out, progress.heard, code)


def _fresh(stem: str) -> Path:
    """A folder that is not there yet."""
    named = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    again = (named.with_name(f"{named.name}-{number}") for number in range(2, 1000))
    return next((path for path in (named, *again) if not path.exists()), named)


def _folder(out: Path, may_exist: bool) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=may_exist)
    except OSError as error:
        raise HublessError(f"cannot make the folder {out}: {error.strerror}") from error
    return out


def _close(options: argparse.Namespace, out: Path, heard: int, code: int) -> None:
    """Say where everything is."""
    if not heard and options.out is None:
        # only if the script itself put nothing there
        with suppress(OSError):
            out.rmdir()
    if options.json:
        print(json.dumps({"out": str(out), "events": heard, "exit": code}))
    elif heard:
        print(f"\n{heard} events in {out}", file=sys.stderr)
        print(f"  hubless watch {out}\n  hubless report {out}", file=sys.stderr)
    else:
        print("\nno simulation or federation ran: there is nothing to watch", file=sys.stderr)


def _watch(options: argparse.Namespace) -> int:
    apart = [name for name in ("host", "port", "token") if getattr(options, name) is not None]
    if apart and not options.web:
        options.parser.error(f"--{apart[0]} goes with --web")
    if options.json and not options.once:
        options.parser.error("--json goes with --once")
    if options.web and options.once:
        options.parser.error("--once shows what is there in the terminal, without --web")
    from hubless.watch.feed import open_feed

    settings = bucket_settings(options, options.source)
    feed = open_feed(
        options.source, endpoint=options.endpoint, options=settings, wait=not options.once
    )
    if options.json:
        from hubless.watch.fold.overview import Overview, look

        overview = Overview(feed.name)
        look(overview, [feed])
        if overview.feed_trouble:
            raise HublessError(overview.feed_trouble)
        print(in_json(overview.to_json()))
        return 0
    with needing("watch", "watch"):
        if not options.web:
            from hubless.watch.live.terminal import watch_terminal

            return watch_terminal(feed, interval=options.interval, once=options.once)
        from hubless.watch.live.web import serve
    host = "127.0.0.1" if options.host is None else options.host
    port = 8642 if options.port is None else options.port
    return serve(feed, host=host, port=port, token=options.token, interval=options.interval)


def _report(options: argparse.Namespace) -> int:
    with needing("report", "report"):
        from hubless.watch.report.page import write_report

        page = write_report(
            options.sources,
            options.output,
            endpoint=options.endpoint,
            options=bucket_settings(options, *options.sources),
            pictures=not options.no_pictures,
        )
    size = page.stat().st_size
    if options.json:
        print(json.dumps({"output": str(page), "bytes": size}))
    else:
        print(f"{page}: {in_bytes(size)}")
    return 0
