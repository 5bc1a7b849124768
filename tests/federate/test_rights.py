"""Rights: with a policy per member, each writes its own keys alone, and rounds go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hubless
from hubless.cli import main
from hubless.errors import AlreadyExists, BadName, Denied, HublessError, StoreError
from hubless.federate import keys
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.outside.probe import examine
from hubless.federate.outside.rights import policy
from hubless.store import open_store
from hubless.store.base import Bytes, Entry, Store
from hubless.store.memory import MemoryStore
from hubless.store.reliable import Reliable
from hubless.store.wrapping import Wrapping
from tests.support import servers
from tests.support.servers import Server, Unavailable

Operation = Literal["create", "write", "delete"]
May = Callable[[str, Operation, str], bool]
"""Whether a client may do this to a key below the federation's folder."""

FOLDER = "runs/run1"
PROVIDERS = ("s3", "gs", "az")


# ------------------------------------------------------------------ what the providers make of it


def _like(pattern: str, text: str) -> bool:
    signs = {"*": ".*", "?": "."}
    return bool(re.fullmatch("".join(signs.get(c, re.escape(c)) for c in pattern), text, re.DOTALL))


def _on_s3(document: Any, client: str) -> May:
    def may(_: str, operation: Operation, key: str) -> bool:
        action = "s3:DeleteObject" if operation == "delete" else "s3:PutObject"
        return any(
            action in statement["Action"]
            and (operation == "create" or "Condition" not in statement)
            and f"arn:aws:iam::1:user/{client}" in statement["Principal"]["AWS"]
            and any(_like(r, f"arn:aws:s3:::bucket/{FOLDER}/{key}") for r in statement["Resource"])
            for statement in document["Statement"]
        )

    return may


class _Name(str):
    def startsWith(self, start: str) -> bool:
        return self.startswith(start)

    def extract(self, template: str) -> str:
        before, after = re.split(r"\{\w+\}", template)
        _, found, rest = self.partition(before)
        inside, end, _ = rest.partition(after)
        return inside if found and end else ""


def _on_gs(document: Any, client: str) -> May:
    wanted = {"create": {"objectUser", "objectCreator"}}

    def may(_: str, operation: Operation, key: str) -> bool:
        name = _Name(f"projects/_/buckets/bucket/objects/{FOLDER}/{key}")
        resource = type("Resource", (), {"name": name})
        roles = {f"roles/storage.{r}" for r in wanted.get(operation, {"objectUser"})}
        for binding in document["bindings"]:
            if f"user:{client}" in binding["members"] and binding["role"] in roles:
                expression = binding["condition"]["expression"]
                said = expression.replace("||", "or").replace("&&", "and")
                if eval(said, {"resource": resource}):
                    return True
        return False

    return may


def _on_az(document: Any, client: str) -> May:
    actions = {"create": ("add/action", "write"), "write": ("write",), "delete": ("delete",)}

    def allows(action: str, key: str) -> bool:
        said = re.sub(r"!\(ActionMatches\{'\S+/blobs/(\S+?)'\}\)", r"(action != '\1')", condition)
        said = re.sub(r"ActionMatches\{'\S+/blobs/(\S+?)'\}", r"(action == '\1')", said)
        said = re.sub(r"SubOperationMatches\{'Blob.List'\}", "False", said)
        said = re.sub(r"@\w+\[\S+?:\w+\] String(Like|StartsWith) '(\S*?)'", r"\1('\2')", said)
        said = said.replace("AND", "and").replace("OR", "or").replace("NOT", "not")
        said = said.replace("!(", "not (")
        path = f"{FOLDER}/{key}"
        names = {
            "action": action,
            "Like": lambda pattern: _like(pattern, path),
            "StartsWith": path.startswith,
        }
        return bool(eval(said, names))

    assignment = document[client]
    assert assignment["principalId"] == f"id-of-{client}"
    condition = assignment["condition"]
    return lambda _, operation, key: any(allows(a, key) for a in actions[operation])


def _rights(provider: str, clients: Sequence[str]) -> dict[str, May]:
    accounts = {"s3": "arn:aws:iam::1:user/{}", "gs": "user:{}", "az": "id-of-{}"}
    members = {client: accounts[provider].format(client) for client in clients}
    document = json.loads(json.dumps(policy(f"{provider}://bucket/{FOLDER}", members)))
    reading = {"s3": _on_s3, "gs": _on_gs, "az": _on_az}[provider]
    return {client: reading(document, client) for client in clients}


# -------------------------------------------------------------------------------- what is allowed

INNER = "ab0_.-"
CLIENTS = st.from_regex(rf"[ab0_]([{INNER}]{{0,5}}[ab0_])?", fullmatch=True).filter(
    lambda name: ".." not in name
)
LIVES = st.builds(Incarnation, st.integers(0, 9999), st.sampled_from(["00000000", "abababab"]))
DIGEST = "0123456789abcdef" * 2


@st.composite
def _keys_of(draw: st.DrawFn, client: str) -> str:
    """A key that is this client's, of any kind."""
    life, number = draw(LIVES), draw(st.integers(0, 99_999_999))
    folder = draw(st.sampled_from([keys.UPDATES, f"{keys.round_folder(number)}updates/"]))
    valuation = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
    posted = Posted(folder, client, number, life, 10, 3, DIGEST[:12], valuation=valuation)
    attempt, index = draw(st.integers(0, 9999)), draw(st.integers(0, 99_999))
    return draw(
        st.sampled_from(
            [
                posted.key,
                keys.life_key(client, life),
                keys.life_key(client, life, left=True),
                *(
                    keys.slice_key(kind, number, attempt, index, client, life, digest)
                    for kind in ("looks", "slices")
                    for digest in (DIGEST, f"{DIGEST}-{DIGEST}")
                ),
                keys.probe_key(client),
            ]
        )
    )


def _owner(key: str) -> str | None:
    """Whose a key is, as members read it."""
    entry = Entry(key, 0, 0.0)
    if posted := Posted.parse(entry):
        return posted.client
    listing = keys.parse_listing([entry])
    for round_ in listing.rounds.values():
        for made in round_.made:
            return made.client
    named = re.fullmatch(r"(?:members|probe)/([^=/]+)=.*", key)
    return named[1] if named else None


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=150)
@given(data=st.data(), mine=CLIENTS, other=CLIENTS)
def test_a_member_may_write_its_own_keys_and_nobody_elses(
    provider: str, data: st.DataObject, mine: str, other: str
) -> None:
    may = _rights(provider, [mine])[mine]
    operations: tuple[Operation, ...] = ("create", "write", "delete")
    key = data.draw(_keys_of(mine))
    assert _owner(key) == mine
    assert all(may(mine, operation, key) for operation in operations)
    if other != mine:
        key = data.draw(_keys_of(other))
        assert not any(may(mine, operation, key) for operation in operations)


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=300)
@given(data=st.data(), mine=CLIENTS, other=CLIENTS)
def test_no_key_that_a_member_may_write_is_read_as_anothers(
    provider: str, data: st.DataObject, mine: str, other: str
) -> None:
    """From the other side: keys that look like anybody's, cut up and put together again."""
    pieces = [
        *(f"{mine}=", f"{other}=", f"={mine}=", f"={other}=", "/", "=", "-", "..", "*", "?", "%2F"),
        *(
            "updates/",
            "rounds/",
            "00000001/",
            "slices-0000/",
            "looks-0000/",
            "00001",
            "members/",
            "plan-0000.json",
        ),
        *data.draw(_keys_of(other)).partition(f"{other}="),
        *data.draw(_keys_of(mine)).partition(f"{mine}="),
    ]
    key = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=6)))
    may = _rights(provider, [mine])[mine]
    if any(may(mine, operation, key) for operation in ("create", "write", "delete")):  # type: ignore[arg-type]
        assert _owner(key) in (mine, None)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_the_first_to_come_decides_is_created_and_never_overwritten(provider: str) -> None:
    may = _rights(provider, ["a", "b"])["a"]
    for key in (keys.FEDERATION, keys.INITIAL, keys.plan_key(7, 1)):
        assert may("a", "create", key)
        assert not may("a", "write", key)
        assert not may("a", "delete", key)


@pytest.mark.parametrize(
    "name", ["*", "a*", "?", "a/b", "a=b", "$" + "{aws:username}", "%61", "", "a'"]
)
def test_a_name_that_means_more_in_a_policy_is_no_name(name: str) -> None:
    with pytest.raises(BadName):
        policy("s3://bucket/run1", {name: ""})


@pytest.mark.parametrize(
    "url", ["s3://b/run*", "gs://b/{x}", "az://b/a'b", "s3://b/$" + "{x}", "s3://", "dir"]
)
def test_an_address_that_means_more_in_a_policy_is_refused(url: str) -> None:
    with pytest.raises(HublessError):
        policy(url, {"a": "account"})


class _Watched(Wrapping):
    """A store that holds each write of a member against what the member may do."""

    def __init__(self, store: Store, may: May, client: str, denied: list[str]) -> None:
        super().__init__(store)
        self._may, self._client, self._denied = may, client, denied
        self.parallel = 1

    def _check(self, operation: Operation, key: str) -> None:
        if not self._may(self._client, operation, key):
            self._denied.append(f"{operation} {key}")
            raise Denied(f"{self._client} may not {operation} {key}", key)

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self._check("create" if create else "write", key)
        super().put(key, parts, create=create)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check("delete", key)
        super().delete(keys)


def _play(places: dict[str, Any], options: dict[str, Any], mode: str, rounds: int = 5) -> None:
    """All members take part in several rounds; the last ends with the mean of what they share."""
    rules: dict[str, Any] = {}
    if mode == "sync":
        pace = hubless.Rounds(members=list(places), deadline=60.0)
        rules = {"pace": pace, "strategy": hubless.FedAvgM()}

    def member(client: str) -> list[Any]:
        value = float(sorted(places).index(client))
        opened = options.get(client)
        with hubless.join(
            hubless.Bucket(places[client], options=opened), client, **rules
        ) as federation:
            for _ in range(rounds):
                model = {"w": np.full(4, value, np.float32)}
                result = federation.step(model, examples=10)
            return [float(x) for x in result["w"]]

    with ThreadPoolExecutor(len(places)) as pool:
        results = list(pool.map(member, places))
    if mode == "sync":
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("mode", ["async", "sync"])
@settings(max_examples=4)
@given(names=st.lists(CLIENTS, min_size=2, max_size=3, unique=True))
def test_all_that_members_write_is_allowed(provider: str, mode: str, names: list[str]) -> None:
    rights, store = _rights(provider, names), MemoryStore()
    denied: list[str] = []
    places = {client: _Watched(store, rights[client], client, denied) for client in names}
    _play(places, {}, mode)
    # plans of old rounds stay where nobody may delete them, and all else goes
    assert all(re.fullmatch(r"delete rounds/\d{8}/plan-\d{4}\.json", what) for what in denied)
    rounds = {key.split("/")[1] for key in _listed(store, "rounds/") if "/slices-" in key}
    assert mode == "async" or (denied and len(rounds) <= 3)


def _listed(store: Store, prefix: str) -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def test_being_denied_to_overwrite_what_is_there_means_that_it_exists() -> None:
    class Strict(MemoryStore):
        def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
            if create and _listed(self, ""):
                raise Denied("creating it again takes the right to delete it", key)
            super().put(key, parts, create=create)

    store = Reliable(Strict())
    store.put("plan", [b"first"], create=True)
    with pytest.raises(AlreadyExists):
        store.put("plan", [b"second"], create=True)
    with pytest.raises(Denied):
        store.put("other", [b"second"], create=True)


# ------------------------------------------------------------------ on a server that enforces them


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at which a, ab and b come with credentials and policies of their own."""
    members = {"a": "", "ab": "", "b": ""}
    policies = policy(f"s3://{servers.BUCKET}/confined", members, conditions=False)
    try:
        with servers.seaweedfs(tmp_path_factory.mktemp("confined"), policies) as server:
            yield server
    except Unavailable as error:
        pytest.skip(error.reason)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_members_with_a_policy_each_federate_and_cannot_touch_each_other(
    confined: Server, mode: str
) -> None:
    # the federation's own folder; in the other mode it is another federation
    url = f"{confined.url}/confined"
    options = {c: {**confined.options, **servers.credentials(c)} for c in ("a", "ab", "b")}
    everything = open_store(url, options=confined.options)
    everything.delete(_listed(everything, ""))
    _play(dict.fromkeys(("a", "b"), url), options, mode)
    for client, victim in (("a", "b"), ("ab", "a"), ("b", "ab")):
        store = open_store(url, options=options[client])
        theirs = [key for key in _listed(store, "") if f"/{victim}=" in key or f"={victim}=" in key]
        assert theirs or victim == "ab"
        for key in theirs:
            assert store.get(key)
            with pytest.raises(Denied):
                store.put(key, [b"forged"])
            with pytest.raises(StoreError):
                store.delete([key])
        for key in (
            f"updates/{victim}=1",
            f"members/{victim}=1",
            f"rounds/00000009/updates/{victim}=1",
        ):
            with pytest.raises(Denied):
                store.put(key, [b"forged"])
        for key in _listed(store, "rounds/"):
            if "/plan-" in key:
                with pytest.raises(StoreError):
                    store.delete([key])
        assert [key for key in theirs if key not in _listed(store, "")] == []


def test_a_member_with_a_policy_can_check_what_it_may_do(confined: Server) -> None:
    options = {**confined.options, **servers.credentials("a")}
    store = open_store(f"{confined.url}/confined", options=options)
    found = examine(store, size=1 << 20, client="a")
    assert found.usable and found.can_delete and found.creates_if_absent, found
    assert "denied" in examine(store, size=1 << 20, client="b").trouble.lower()
    assert not _listed(store, keys.PROBE)


def test_the_command_prints_what_a_provider_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "s3://bucket/run1", "--member", "a", "--member", "b"]) == 0
    said = capsys.readouterr()
    assert set(json.loads(said.out)) == {"a", "b"}
    assert "plans" in said.err
    assert main(["policy", "gs://bucket/run1", "--member", "a"]) == 1
    assert "a=ACCOUNT" in capsys.readouterr().err
