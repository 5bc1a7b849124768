"""Rights: what a bucket's access rules have to say so that each member writes its own keys alone.

A member reads everything below the federation's folder, writes and deletes what goes by its name,
and creates what the first to come decides, without a right to overwrite or delete that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubless.errors import HublessError
from hubless.federate import keys

Document = dict[str, Any]
"""What JSON calls an object."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*/?")
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


@dataclass(frozen=True)
class Location:
    """Where a federation is in which provider's bucket."""

    scheme: str
    name: str
    folder: str
    """Empty, or ends with a slash."""

    @classmethod
    def parse(cls, url: str) -> Location:
        """A bucket's address, if policies can be made for it.

        >>> Location.parse("s3://bucket/run1")
        Location(scheme='s3', name='bucket', folder='run1/')
        """
        scheme, _, rest = url.partition("://")
        if scheme not in ("s3", "gs", "az"):
            raise HublessError(
                f"{url}: policies are made for s3://, gs:// and az://. In a shared folder, a "
                "file's rights go by its owner, and members can only be trusted"
            )
        if not _PLAIN.fullmatch(rest):
            raise HublessError(
                f"{url}: in policies some characters have a meaning of their own. Take a bucket "
                "and a folder made of letters, digits, '-', '_', '.' and '/'"
            )
        bucket, _, folder = rest.partition("/")
        folder = folder.rstrip("/")
        return cls(scheme, bucket, f"{folder}/" if folder else "")


def policy(url: str, members: Mapping[str, str], conditions: bool = True) -> Document:
    """What confines each of these members to its own keys, as the bucket's provider takes it.

    `members` gives each client the account that it uses the bucket by: an ARN, a principal such as
    `serviceAccount:...`, an object id. On S3 that may be empty for all of them: there is one
    policy for each then, to be attached to its user or role. Without `conditions`, what the
    first to come decides may be overwritten: some servers do not know `s3:if-none-match`.
    """
    at = Location.parse(url)
    for client in members:
        keys.check_name(client)
    unknown = [client for client, account in members.items() if not account]
    if at.scheme == "s3" and len(unknown) == len(members):
        return {client: _s3(at, {client: ""}, conditions) for client in members}
    if unknown:
        raise HublessError(
            f"{at.scheme}://{at.name} has to know by which account each member comes: give "
            f"--member {unknown[0]}=ACCOUNT, for all of them"
        )
    if at.scheme == "s3":
        return _s3(at, members, conditions)
    if at.scheme == "gs":
        bindings = [b for client, account in members.items() for b in _gs(at, client, account)]
        return {"version": 3, "bindings": bindings}
    return {client: _az(at, client, account) for client, account in members.items()}


def _s3(at: Location, members: Mapping[str, str], conditions: bool) -> Document:
    """An IAM policy of one member, or a bucket's policy of several."""
    bucket = f"arn:aws:s3:::{at.name}"
    inside = f"{bucket}/{at.folder}"

    def allow(actions: Sequence[str], resources: Sequence[str], *clients: str) -> Document:
        accounts = [members[client] for client in clients if members[client]]
        whom = {"Principal": {"AWS": accounts}} if accounts else {}
        named = [f"s3:{action}" for action in actions]
        return {"Effect": "Allow", **whom, "Action": named, "Resource": list(resources)}

    # all of it: who may not list a bucket is denied what is not there, instead of being told so
    listing = allow(["ListBucket"], [bucket], *members)
    creating = allow(["PutObject"], [inside + pattern for pattern in keys.SHARED], *members)
    if conditions:
        creating["Condition"] = {"Null": {"s3:if-none-match": "false"}}
    owning = [
        allow(
            ["PutObject", "DeleteObject", "AbortMultipartUpload"],
            [inside + pattern for pattern in keys.owned(client)],
            client,
        )
        for client in members
    ]
    reading = allow(["GetObject"], [f"{inside}*"], *members)
    return {"Version": "2012-10-17", "Statement": [listing, reading, creating, *owning]}


def _gs(at: Location, client: str, account: str) -> list[Document]:
    """Conditional role bindings; who may create and not delete cannot overwrite either."""
    objects = f"projects/_/buckets/{at.name}/objects/{at.folder}"
    rounds = f"/objects/{at.folder}{keys.ROUNDS}"

    def starts(with_: str) -> str:
        return f'resource.name.startsWith("{objects}{with_}")'

    def has(after_rounds: str) -> str:
        return f'resource.name.extract("{rounds}{{any}}{after_rounds}") != ""'

    own = [starts(f"{folder}{client}=") for folder in (keys.MEMBERS, keys.UPDATES, keys.PROBE)]
    in_rounds = f"{has(f'/updates/{client}=')} || {has(f'={client}=')}"
    own.append(f"({starts(keys.ROUNDS)} && ({in_rounds}))")
    shared = [f'resource.name == "{objects}{key}"' for key in (keys.FEDERATION, keys.INITIAL)]
    shared.append(f"({starts(keys.ROUNDS)} && {has('/plan-')})")
    roles = {"objectViewer": [starts("")], "objectUser": own, "objectCreator": shared}
    conditional = [
        {
            "role": f"roles/storage.{role}",
            "members": [account],
            "condition": {"title": f"hubless {client}", "expression": " || ".join(alternatives)},
        }
        for role, alternatives in roles.items()
    ]
    # as on S3, who may not list is denied what is not there
    return [{"role": "roles/storage.legacyBucketReader", "members": [account]}, *conditional]


def _az(at: Location, client: str, account: str) -> Document:
    """A role assignment with a condition; `add` creates a blob, and `write` overwrites one, too."""

    def only(actions: Sequence[str], patterns: Sequence[str]) -> str:
        others = " AND ".join(f"!(ActionMatches{{'{_BLOBS}/{action}'}})" for action in actions)
        path = f"@Resource[{_BLOBS}:path] StringLike"
        allowed = " OR ".join(f"{path} '{at.folder}{pattern}'" for pattern in patterns)
        return f"(({others}) OR ({allowed}))"

    own = keys.owned(client)
    listing = f"ActionMatches{{'{_BLOBS}/read'}} AND SubOperationMatches{{'Blob.List'}}"
    reading = f"ActionMatches{{'{_BLOBS}/read'}} AND NOT SubOperationMatches{{'Blob.List'}}"
    rules = [
        only(["write", "delete", "move/action"], own),
        only(["add/action"], [*own, *keys.SHARED]),
    ]
    if at.folder:
        rules += [
            f"(!({listing}) OR (@Request[{_BLOBS}:prefix] StringStartsWith '{at.folder}'))",
            f"(!({reading}) OR (@Resource[{_BLOBS}:path] StringStartsWith '{at.folder}'))",
        ]
    return {
        "principalId": account,
        "roleDefinitionName": "Storage Blob Data Contributor",
        "scope": f"/blobServices/default/containers/{at.name}",
        "conditionVersion": "2.0",
        "condition": " AND ".join(rules),
    }
