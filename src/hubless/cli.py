"""The command line: `hubless ls`, `hubless check`, `hubless pull`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hubless import __version__
from hubless.errors import HublessError

if TYPE_CHECKING:
    from hubless.store.base import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 1 a refusal that was explained, 2 a wrong call."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except HublessError as error:
        if options.traceback:
            raise
        lines = [_printable(line) for line in str(error).splitlines()]
        print(f"hubless {options.command}:", "\n".join(lines), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hubless", description="Federated learning without a hub."
    )
    parser.add_argument("--version", action="version", version=f"hubless {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("url", help="a folder, s3://bucket/run, gs://bucket/run, az://bucket/run")
    common.add_argument("--endpoint", help="where an S3, GCS or Azure server of your own answers")
    common.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for the bucket, such as region=eu-west-1; may be given again",
    )
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument("--traceback", action="store_true", help="show where an error came from")

    ls = commands.add_parser("ls", parents=[common], help="who is there, and how far they are")
    ls.set_defaults(run=_ls)
    check = commands.add_parser(
        "check", parents=[common], help="what a store can do, by trying it", description=_CHECK
    )
    check.add_argument("--size", type=int, default=16, help="MiB to measure bandwidth with")
    check.set_defaults(run=_check)
    pull = commands.add_parser(
        "pull", parents=[common], help="fetch the federation's model as a safetensors file"
    )
    pull.add_argument("-o", "--output", type=Path, default=Path("model.safetensors"))
    pull.set_defaults(run=_pull)
    return parser


_CHECK = """Write, read, list and delete a few objects below probe/, see whether create-if-absent
has one winner, and measure latency and bandwidth. Nothing stays behind."""


def _open(options: argparse.Namespace) -> Store:
    from hubless.store import open_store
    from hubless.store.reliable import Reliable

    settings = {}
    for setting in options.option:
        key, separator, value = setting.partition("=")
        if not separator:
            raise HublessError(f"--option takes KEY=VALUE, not {setting!r}")
        settings[key] = value
    folder = options.url.removeprefix("file://")
    if "://" not in folder and not Path(folder).expanduser().is_dir():
        # opening a folder makes it, and looking at one should not
        raise HublessError(f"there is no folder {options.url}")
    return Reliable(open_store(options.url, options.endpoint, settings), patience=20.0)


def _ls(options: argparse.Namespace) -> int:
    from hubless.federate.survey import survey

    store = _open(options)
    agreement, members = survey(store)
    size = agreement.signature.size
    if options.json:
        document = {"url": store.url, "mode": agreement.mode, "model_bytes": size}
        print(json.dumps({**document, "members": [asdict(m) for m in members]}))
        return 0
    count = len(agreement.signature.specs)
    print(f"{store.url}  {agreement.mode}, {count} parameters, {_bytes(size)}")
    rows = [("CLIENT", "UPDATE", "VERSION", "AGE", "EXAMPLES", "METRICS")]
    for m in members:
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in m.metrics.items())
        noted = f"refused: {m.trouble}" if m.trouble else metrics
        figures = (str(m.sequence), str(m.version), _age(m.age), str(m.examples))
        rows.append((m.client, *figures, noted))
    _table(rows)
    return 0


def _check(options: argparse.Namespace) -> int:
    from hubless.federate.probe import examine
    from hubless.store.reliable import Reliable

    store = _open(options)
    # the store itself, without the patience that would hide how it behaves
    bare = store.store if isinstance(store, Reliable) else store
    found = examine(bare, size=max(1, options.size) << 20)
    if options.json:
        print(json.dumps({"url": store.url, "usable": found.usable, **asdict(found)}))
        return 0 if found.usable else 1
    rows = [
        ("write", _yes(found.can_write), f"{found.put_seconds * 1000:.1f} ms"),
        ("read", _yes(found.can_read), f"{found.get_seconds * 1000:.1f} ms"),
        ("list", _yes(found.can_list), f"{found.list_seconds * 1000:.1f} ms"),
        ("delete", _yes(found.can_delete), ""),
        ("upload", "", f"{_bytes(found.upload_rate)}/s"),
        ("download", "", f"{_bytes(found.download_rate)}/s"),
        ("create if absent", _yes(found.creates_if_absent), found.create_note),
    ]
    print(store.url)
    _table(rows)
    if found.trouble:
        print(f"stopped at: {found.trouble}")
    modes = [*(["async"] if found.usable else []), *(["sync"] if found.creates_if_absent else [])]
    print(f"good for: {', '.join(modes) or 'nothing yet'}")
    return 0 if found.usable else 1


def _pull(options: argparse.Namespace) -> int:
    from hubless.federate.survey import arrived_at
    from hubless.store import codec

    store = _open(options)
    refused: list[str] = []

    def refuse(refusal: HublessError) -> None:
        refused.append(str(refusal))
        print(f"hubless pull: {_printable(str(refusal))}", file=sys.stderr)

    agreement, model = arrived_at(store, refuse)
    noted = {"url": store.url, "version": str(model.version), "clients": json.dumps(model.clients)}
    parts = codec.encode(agreement.signature, model.flat, noted)
    staged = options.output.with_name(f".{options.output.name}.{os.getpid()}")
    try:
        with open(staged, "wb") as file:
            for part in parts:
                file.write(part)
        os.replace(staged, options.output)
    except OSError as error:
        staged.unlink(missing_ok=True)
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
        print(f"{options.output}: {_bytes(agreement.signature.size)}, from {clients} clients")
    return 0


def _printable(text: str) -> str:
    """Text from the store, without what a terminal would act upon."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    rows = [tuple(map(_printable, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _yes(fact: bool) -> str:
    return "yes" if fact else "NO"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
