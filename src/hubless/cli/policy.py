"""`hubless policy`: the access rules that confine each member of a federation to its own keys."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from hubless.cli.parsing import add_command
from hubless.errors import HublessError

_POLICY = """Print, as JSON, what confines each member to its own keys in a bucket: policies for
S3, role bindings for Google Cloud Storage, role assignments for Azure. It changes nothing."""

_SHARED = """Every member may still create what the first to come decides: federation.json,
initial.safetensors, and the plans that close rounds. Plans of old rounds stay, a few hundred bytes
each: only whoever runs the bucket may delete them. docs/trust.md says what that leaves open."""

_OVERWRITTEN = """Without conditions any member may overwrite those, too."""


def add_policy(commands: Any) -> None:
    """Add `policy`."""
    policy = add_command(
        commands,
        "policy",
        _policy,
        json=False,
        help="the access rules that confine each member to its own keys",
        description=_POLICY,
    )
    policy.add_argument("url", help="s3://bucket/run, gs://bucket/run, az://bucket/run")
    policy.add_argument(
        "--member",
        action="append",
        required=True,
        metavar="CLIENT[=ACCOUNT]",
        help="a member, and the account that it uses the bucket by; may be given again",
    )
    policy.add_argument(
        "--without-conditions",
        action="store_true",
        help="for S3 servers that do not know the condition s3:if-none-match",
    )


def _policy(options: argparse.Namespace) -> int:
    from hubless.federate.outside.rights import policy

    members: dict[str, str] = {}
    for given in options.member:
        client, _, account = given.partition("=")
        if client in members:
            raise HublessError(f"--member {client} is given twice")
        members[client] = account
    print(json.dumps(policy(options.url, members, not options.without_conditions), indent=2))
    print(_SHARED, file=sys.stderr)
    if options.without_conditions:
        print(_OVERWRITTEN, file=sys.stderr)
    return 0
