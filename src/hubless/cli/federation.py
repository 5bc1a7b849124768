"""Looking at a federation from outside: `hubless ls`, `hubless check`, `hubless pull`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubless.cli.parsing import URL, add_bucket, add_command, bucket_settings
from hubless.cli.printing import in_bytes, in_json, in_time, in_words, print_table
from hubless.errors import HublessError, printable
from hubless.whole import write_whole

if TYPE_CHECKING:
    from hubless.store.reliable import Reliable

_MOST = 1024
_CHECK = """Write, read, list and delete a few objects below probe/, see whether create-if-absent
has one winner, and measure latency and bandwidth. Nothing stays behind."""


def add_federation(commands: Any) -> None:
    """Add `ls`, `check` and `pull`."""
    ls = add_command(commands, "ls", _ls, help="who is there, and how far they are")
    check = add_command(
        commands, "check", _check, help="what a store can do, by trying it", description=_CHECK
    )
    check.add_argument(
        "--size", type=_size, default=16, metavar="MIB", help="MiB to measure bandwidth with"
    )
    check.add_argument(
        "--client", default="check", help="the member to try it as, which may write its own keys"
    )
    pull = add_command(
        commands, "pull", _pull, help="fetch the federation's model as a safetensors file"
    )
    pull.add_argument("-o", "--output", type=Path, default=Path("model.safetensors"))
    for command in (ls, check, pull):
        command.add_argument("url", help=URL)
        add_bucket(command)


def _size(text: str) -> int:
    if not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {_MOST} MiB")
    return int(text)


def _open(options: argparse.Namespace) -> Reliable:
    from hubless.store import open_store
    from hubless.store.reliable import Reliable

    if not options.url.strip():
        raise HublessError(f"the address is empty, and should be {URL}")
    settings = bucket_settings(options, options.url)
    return Reliable(open_store(options.url, options.endpoint, settings, make=False), patience=20.0)


def _ls(options: argparse.Namespace) -> int:
    from hubless.federate.outside.survey import survey

    store = _open(options)
    agreement, members = survey(store)
    size = agreement.signature.size
    if options.json:
        document = {"url": store.url, "mode": agreement.mode, "model_bytes": size}
        print(in_json({**document, "members": [asdict(m) for m in members]}))
        return 0
    count = len(agreement.signature.specs)
    print(f"{store.url}  {agreement.mode}, {count} parameters, {in_bytes(size)}")
    rows = [("CLIENT", "UPDATE", "VERSION", "AGE", "EXAMPLES", "LEFT", "METRICS")]
    for m in members:
        noted = f"refused: {m.trouble}" if m.trouble else in_words(m.metrics)
        figures = (str(m.sequence), str(m.version), in_time(m.age), str(m.examples))
        gone = "left" if m.left else ""
        rows.append((m.client, *figures, gone, noted))
    print_table(rows)
    return 0


def _check(options: argparse.Namespace) -> int:
    from hubless.federate.keys import check_name
    from hubless.federate.outside.probe import examine
    from hubless.store.reliable import Reliable

    store = _open(options)
    # the store itself, without the patience that would hide how it behaves
    bare = store.store if isinstance(store, Reliable) else store
    client = check_name(options.client)
    findings = examine(bare, size=options.size << 20, client=client)
    if options.json:
        print(in_json({"url": store.url, "usable": findings.usable, **asdict(findings)}))
        return 0 if findings.usable else 1
    rows = [
        ("write", _yes(findings.can_write), f"{findings.put_seconds * 1000:.1f} ms"),
        ("read", _yes(findings.can_read), f"{findings.get_seconds * 1000:.1f} ms"),
        ("list", _yes(findings.can_list), f"{findings.list_seconds * 1000:.1f} ms"),
        ("delete", _yes(findings.can_delete), ""),
        ("upload", "", f"{in_bytes(findings.upload_rate)}/s"),
        ("download", "", f"{in_bytes(findings.download_rate)}/s"),
        ("create if absent", _yes(findings.creates_if_absent), findings.create_note),
    ]
    print(store.url)
    print_table(rows)
    if findings.trouble:
        print(f"stopped at: {findings.trouble}")
    modes = [
        *(["async"] if findings.usable else []),
        *(["sync"] if findings.creates_if_absent else []),
    ]
    print(f"good for: {', '.join(modes) or 'nothing yet'}")
    return 0 if findings.usable else 1


def _pull(options: argparse.Namespace) -> int:
    from hubless.federate.outside.survey import arrived_at
    from hubless.store import codec

    if options.output.is_dir():
        raise HublessError(f"cannot write {options.output}: it is a folder, give a file's name")
    if not options.output.absolute().parent.is_dir():
        raise HublessError(
            f"cannot write {options.output}: there is no folder {options.output.parent}"
        )
    store = _open(options)
    refused: list[str] = []

    def refuse(refusal: HublessError) -> None:
        refused.append(str(refusal))
        print(f"hubless pull: {printable(str(refusal))}", file=sys.stderr)

    agreement, model = arrived_at(store, refuse)
    noted = {"url": store.url, "version": str(model.version), "clients": json.dumps(model.clients)}
    parts = codec.encode(agreement.signature, model.flat, noted)
    try:
        write_whole(options.output, parts)
    except OSError as error:
        raise HublessError(f"cannot write {options.output}: {error}") from error
    if options.json:
        document = {
            "output": str(options.output),
            "bytes": agreement.signature.size,
            "version": model.version,
            "clients": model.clients,
            "refused": refused,
        }
        print(json.dumps(document))
    else:
        clients = len(model.clients)
        print(f"{options.output}: {in_bytes(agreement.signature.size)}, from {clients} clients")
    return 0


def _yes(fact: bool) -> str:
    return "yes" if fact else "NO"
