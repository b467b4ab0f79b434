"""The master's API over TLS on a loopback port: who may call what, what it does, and what it says when it does not."""

import hashlib
import json
import logging
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from child.api import MasterApi, enrol
from master import pki
from master.api.app import make_app
from master.api.client import open_admin
from master.api.serve import ApiServer, listen
from master.connection import MeasuredConnection
from master.home import DaemonInfo, MasterHome
from tests.support.api import ADMIN, QUICK, Running, running_master
from trunkline import transfers
from trunkline.api import BlobFile, Hello, Invitation, Manifest
from trunkline.clock import SystemClock
from trunkline.errors import (
    AlreadyRunning,
    Conflict,
    DamagedFile,
    NotAuthorized,
    NotFound,
    Reason,
    RefusedValue,
    SettingsError,
    SpecError,
    Unreachable,
    UsageError,
    WireVersionMismatch,
)
from trunkline.https import Https, Patience, fetch_authority
from trunkline.messages import Machine, Request, TaskCount
from trunkline.sets import encode_set

pytestmark = pytest.mark.contract

SHORT = Patience(connect=1.0, answer=1.0, progress=0.3, first_pause=0.01, longest_pause=0.05)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_master(tmp_path_factory.mktemp("master"), max_body_bytes=50_000, poll_seconds=1.0) as running:
        running.encoder("text", "text")
        yield running


@pytest.fixture
def admin(master: Running) -> Iterator[Https]:
    with master.https(ADMIN) as https:
        yield https


_count = iter(range(1_000_000))


def fresh(stem: str = "site") -> str:
    return f"{stem}-{next(_count)}"


def encoder_of(master: Running, type_: str | None = None) -> str:
    name = fresh("encoder")
    master.encoder(name, type_ or name)
    return name


# -- who may call ------------------------------------------------------------------------------------------------------

OPEN = {"/healthz", "/readyz", "/v1/version", "/v1/ca", "/v1/enrol"}


def every_route(master: Running) -> list[tuple[str, str]]:
    paths = make_app(master.parts).openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_every_route_but_a_few_asks_for_a_token(master: Running) -> None:
    """The list of routes is the application's own, so a new one without a lock fails here."""
    routes = every_route(master)
    assert len(routes) > 25 and {path for _, path in routes} >= OPEN
    child = master.enrol(fresh())
    for method, path in routes:
        if path in OPEN:
            continue
        target = path.format(digest="ab" * 32, name="text", number=1, job_id="j")
        for token in (None, "x", ADMIN[:-1], ADMIN + "x"):
            with master.https(token, SHORT) as stranger, pytest.raises(NotAuthorized), stranger.talk(method, target):
                pass
        if path.startswith("/v1/admin"):
            with master.https(child.token, SHORT) as inside, pytest.raises(NotAuthorized), inside.talk(method, target):
                pass


def test_the_admin_is_no_child(master: Running, admin: Https) -> None:
    with pytest.raises(NotAuthorized):
        admin.call("POST", "/v1/hello", Hello(boot="b").model_dump_json())


def test_nothing_is_told_to_strangers(master: Running) -> None:
    with master.https(None) as stranger:
        for path in ("/docs", "/redoc", "/openapi.json", "/", "/v1", "/v1/admin"):
            with pytest.raises(NotFound, match="part of the API"):
                stranger.call("GET", path)
        assert stranger.call("GET", "/healthz") == {"status": "ok"}
        assert stranger.call("GET", "/readyz")["status"] == "ok"
        assert set(stranger.call("GET", "/v1/version")) == {"version", "wire"}


def test_tokens_and_secrets_stand_in_no_log_and_no_event(master: Running, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    name = fresh()
    line = master.invite(name)
    _, got = enrol(line, None, ec.generate_private_key(ec.SECP384R1()), SystemClock(), random.Random(0), QUICK)
    digest = master.parts.blobs.add_bytes(b"a parameter set")
    grant = master.down(name, digest)
    with MasterApi(master.url, got.ca, got.token, SystemClock(), random.Random(0), QUICK) as api:
        api.hello(Hello(boot="b"))
        api.fetch(digest, 15, grant, tmp_path / "set")
        with pytest.raises(NotAuthorized) as caught:
            api.fetch(master.parts.blobs.add_bytes(b"another"), 7, grant, tmp_path / "no")
    with master.https("a-token-nobody-has") as stranger, pytest.raises(NotAuthorized) as wrong:
        stranger.call("GET", "/v1/admin/nodes")
    told = caplog.text + json.dumps([str(event) for event in master.parts.ledger.events(limit=10_000)])
    told += str(caught.value) + str(wrong.value)
    for secret in (got.token, grant, ADMIN, Invitation.decode(line).secret, line, "a-token-nobody-has"):
        assert secret not in told


# -- coming in ---------------------------------------------------------------------------------------------------------


def test_one_line_is_all_a_new_child_needs(master: Running) -> None:
    name = fresh()
    url, got = enrol(
        master.invite(name), "ignored", ec.generate_private_key(ec.SECP384R1()), SystemClock(), random.Random(0), QUICK
    )
    assert url == master.url and got.name == name and got.flower == "127.0.0.1:8441"
    assert pki.fingerprint(got.ca.encode()) == master.tls.fingerprint
    assert got.node_id >= 2**63, "an unsigned 64-bit number comes through"
    with MasterApi(url, got.ca, got.token, SystemClock(), random.Random(0)) as api:
        assert api.hello(Hello(boot="b")).name == name


def test_an_impostor_never_sees_the_secret(master: Running, tmp_path: Path) -> None:
    """Given another master at the address in the invitation, When the child enrols, Then it stops before it shows its secret."""
    with running_master(tmp_path) as impostor:
        stolen = master.invite(fresh(), url=impostor.url)
        with pytest.raises(NotAuthorized, match="fingerprint"):
            enrol(stolen, None, ec.generate_private_key(ec.SECP384R1()), SystemClock(), random.Random(0), SHORT)
        assert not impostor.parts.ledger.nodes() and not impostor.superlink.ids
        assert not [event for event in impostor.parts.ledger.events() if event.kind.startswith("node")]


def test_an_impostor_is_noticed_later_too(master: Running, tmp_path: Path) -> None:
    got = master.enrol(fresh())
    with running_master(tmp_path) as impostor, MasterApi(impostor.url, got.ca, got.token, SystemClock(), random.Random(0)) as api:
        with pytest.raises(NotAuthorized, match=r"127\.0\.0\.1.*certificate") as caught:
            api.hello(Hello(boot="b"))
        assert caught.value.hint and "enrol again" in caught.value.hint


def test_a_name_that_the_certificate_does_not_hold(master: Running) -> None:
    with (
        Https(master.url.replace("127.0.0.1", "127.0.0.2"), master.parts.ca, None, SystemClock(), random.Random(0), SHORT) as https,
        pytest.raises((NotAuthorized, Unreachable)),
    ):
        https.call("GET", "/healthz")


def test_a_used_invitation_says_so(master: Running) -> None:
    line = master.invite(fresh())
    for first in (True, False):
        try:
            enrol(line, None, ec.generate_private_key(ec.SECP384R1()), SystemClock(), random.Random(0), QUICK)
            assert first
        except NotAuthorized as error:
            assert not first and "used" in error.message and error.hint and "trunkline node invite" in error.hint


def test_an_answer_that_got_lost_costs_nothing(master: Running) -> None:
    key, line = ec.generate_private_key(ec.SECP384R1()), master.invite(fresh())
    first = enrol(line, None, key, SystemClock(), random.Random(0), QUICK)[1]
    again = enrol(line, None, key, SystemClock(), random.Random(0), QUICK)[1]
    assert (first.name, first.node_id) == (again.name, again.node_id) and first.token != again.token


# -- a child -----------------------------------------------------------------------------------------------------------


def test_a_greeting_is_noted_and_answered(master: Running) -> None:
    name, kind = fresh(), fresh("type")
    encoder = encoder_of(master, kind)
    machine = Machine(cpus=2, memory=4 << 30, gpus=("a",), precision=("float32", "bf16"))
    tasks = (TaskCount(task="sentiment", head="single", metric="accuracy", samples=7),)
    with master.child(name) as api:
        welcome = api.hello(Hello(boot="b1", machine=machine, tasks=tasks, types=(kind,)))
    node = master.parts.ledger.node(name)
    assert (node.boot, node.machine["cpus"], node.tasks[0]["samples"]) == ("b1", 2, 7)
    assert node.seen is not None and abs(node.seen - time.time()) < 60
    assert [ref.name for ref in welcome.encoders] == [encoder] and welcome.node_id == node.flower_id


def test_a_greeting_in_a_tongue_nobody_speaks(master: Running) -> None:
    with master.child(fresh()) as api, pytest.raises(WireVersionMismatch, match="98 to 99"):
        api.hello(Hello(boot="b", speaks=(98, 99)))


def test_two_requests_for_one_type_start_one_job(master: Running) -> None:
    kind = fresh("type")
    encoder = encoder_of(master, kind)
    children = [(name, master.child(name)) for name in (fresh(), fresh(), fresh())]
    answers: list[Any] = []
    together = threading.Barrier(len(children))

    def ask(name: str, api: MasterApi) -> None:
        together.wait(30)
        answers.append(api.request(Request(child=name, type=kind, tasks=("sentiment",))))

    threads = [threading.Thread(target=ask, args=pair) for pair in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    jobs = [job for job in master.parts.ledger.jobs() if job.encoder == encoder]
    assert len(answers) == 3 and {answer.job for answer in answers} == {jobs[0].id} and len(jobs) == 1
    assert sum(answer.new for answer in answers) == 1 and master.superlink.woken.count(jobs[0].id) == 1
    assert jobs[0].spec["encoder"] == encoder and jobs[0].requested_by in {name for name, _ in children}
    assert not [one for one in master.parts.ledger.open_requests() if one.encoder == encoder]
    name, api = children[0]
    assert api.asked(jobs[0].id).state == "waiting"
    master.parts.ledger.set_job_state(jobs[0].id, "finished")
    assert api.asked(jobs[0].id).state == "finished"
    assert api.request(Request(child=name, encoder=encoder)).job != jobs[0].id, "when it has ended, another one starts"
    for _, api in children:
        api.close()


def test_a_request_that_fits_nothing_says_what_to_do(master: Running) -> None:
    name, kind = fresh(), fresh("type")
    one, two = encoder_of(master, kind), encoder_of(master, kind)
    with master.child(name) as api:
        with pytest.raises(UsageError, match=f"{one}, {two}"):
            api.request(Request(child=name, type=kind))
        with pytest.raises(UsageError, match="neither"):
            api.request(Request(child=name))
        with pytest.raises(UsageError, match="of type"):
            api.request(Request(child=name, encoder=one, type="other"))
        with pytest.raises(NotFound, match="nothing-like-it"):
            api.request(Request(child=name, type="nothing-like-it"))
        with pytest.raises(NotFound):
            api.request(Request(child=name, encoder="nothing-like-it"))
        with pytest.raises(RefusedValue) as caught:
            api.request(Request(child="somebody-else", encoder=one))
        assert caught.value.reason is Reason.SENDER
    assert not [job for job in master.parts.ledger.jobs() if job.encoder in (one, two)]


def test_a_manifest_that_changed_is_noticed(master: Running) -> None:
    with master.child(fresh()) as api:
        assert api.manifest("text", master.parts.ledger.encoder("text").manifest)
        with pytest.raises(RefusedValue) as caught:
            api.manifest("text", "ab" * 32)
        assert caught.value.reason is Reason.DIGEST


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"{}", b'{"boot": 5}', b'{"boot": "b", "extra": 1}', b"\xff\xfe", b"[" * 9_000]
)
@pytest.mark.parametrize(
    "path", ["/v1/hello", "/v1/requests", "/v1/enrol", "/v1/admin/jobs", "/v1/admin/encoders", "/v1/admin/nodes/invite"]
)
def test_a_body_that_is_wrong_is_one_clear_error(master: Running, path: str, body: bytes) -> None:
    if (path, body) == ("/v1/admin/nodes/invite", b"{}"):
        return  # that one is right
    token = ADMIN if "admin" in path else master.enrol(fresh()).token
    with master.https(token) as https, pytest.raises((UsageError, RefusedValue)) as caught:
        https.call("POST", path, body)
    assert "Traceback" not in str(caught.value) and len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "path",
    [
        "events?after=9223372036854775808",
        "encoders/text/versions/2147483648",
        "encoders/text/versions/-1",
        "encoders/text/diff?old=1&new=99999999999999999999",
        "jobs/JOB/rounds/99999999999999999999",
        "jobs//",
    ],
)
def test_a_number_that_no_ledger_has_room_for(master: Running, path: str) -> None:
    master.encoder()
    with master.https(ADMIN) as https:
        with suppress(Conflict):  # one is open
            https.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": "text"}}))
        job = https.call("GET", "/v1/admin/jobs")[0]["id"]
        with pytest.raises((UsageError, NotFound)):
            https.call("GET", f"/v1/admin/{path.replace('JOB', job)}")
        with pytest.raises(UsageError, match="version"):
            https.call("POST", "/v1/admin/encoders/text/rollback", json.dumps({"version": 2**31}))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
def test_a_number_that_json_has_not(master: Running, number: str) -> None:
    master.encoder()
    encoder = {"name": "b", "type": "b", "manifest": "0" * 64, "first": {"digest": "0" * 64, "size": 1}}
    for path, body in (
        ("jobs", {"spec": {"encoder": "text", "training": {"prox": "X"}}}),
        ("jobs", {"spec": {"encoder": "text", "stop": {"target": {"mean": "X"}}}}),
        ("encoders", encoder | {"spec": {"x": ["X"]}}),
    ):
        with master.https(ADMIN) as https, pytest.raises((UsageError, SpecError), match="finite"):
            https.call("POST", f"/v1/admin/{path}", json.dumps(body).replace('"X"', number))


def test_a_body_that_is_too_long_is_not_read(master: Running) -> None:
    with master.child(fresh()) as api, pytest.raises(RefusedValue) as caught:
        api._https.call("POST", "/v1/hello", b"x" * 200_000)
    assert caught.value.reason is Reason.SIZE


def test_a_blob_s_name_is_checked(master: Running, admin: Https) -> None:
    for name in ("x", "AB" * 32, "ab" * 31, "ab" * 33, "..%2f..%2fledger.sqlite3"):
        with pytest.raises((UsageError, NotFound)):
            admin.call("GET", f"/v1/blobs/{name}")


@pytest.mark.parametrize("offset", ["-1", "1e3", "x", "9" * 30])
def test_an_offset_is_checked(master: Running, admin: Https, offset: str) -> None:
    with (
        pytest.raises(UsageError, match="Offset"),
        admin.talk("PUT", f"/v1/blobs/{'ab' * 32}", {"X-Trunkline-Offset": offset}, content=b"x"),
    ):
        pass


def test_an_upload_that_begins_too_far_is_told_where_to_go_on(master: Running, admin: Https) -> None:
    with (
        pytest.raises(Conflict, match="byte 0"),
        admin.talk("PUT", f"/v1/blobs/{'ac' * 32}", {"X-Trunkline-Offset": "7"}, content=b"x"),
    ):
        pass


@pytest.mark.parametrize(
    ("asked", "status", "length"), [("bytes=3-", 206, 7), ("bytes=0-", 200, 10), ("bytes=2-4", 200, 10), ("junk", 200, 10)]
)
def test_ranges(master: Running, admin: Https, asked: str, status: int, length: int) -> None:
    digest = master.parts.blobs.add_bytes(b"0123456789")
    with admin.talk("GET", f"/v1/blobs/{digest}", {"Range": asked}) as answer:
        data = b"".join(answer.chunks)
        assert (answer.status, data) == (status, b"0123456789"[-length:])
        assert answer.headers["content-length"] == str(length)
        assert answer.headers.get("content-range") == ("bytes 3-9/10" if status == 206 else None)
    with pytest.raises(UsageError, match="Range"), admin.talk("GET", f"/v1/blobs/{digest}", {"Range": "bytes=10-"}):
        pass


# -- the admin ---------------------------------------------------------------------------------------------------------


def test_nodes_are_shown_without_what_opens_doors(master: Running, admin: Https) -> None:
    name = fresh()
    got = master.enrol(name)
    told = admin.call("GET", f"/v1/admin/nodes/{name}")
    assert told["name"] == name and told["state"] == "active" and not told["online"]
    listed = json.dumps(admin.call("GET", "/v1/admin/nodes"))
    assert name in listed and got.token not in listed and "token" not in listed and "BEGIN" not in listed
    master.superlink.heard = {got.node_id}
    assert {one["name"] for one in admin.call("GET", "/v1/admin/nodes") if one["online"]} == {name}
    master.superlink.heard = None
    assert admin.call("GET", f"/v1/admin/nodes/{name}")["online"] is None, "nobody knows while the SuperLink is away"
    master.superlink.heard = set()


def test_a_disabled_child_is_kept_out_and_let_in_again(master: Running, admin: Https) -> None:
    name = fresh()
    with master.child(name) as api:
        assert admin.call("POST", f"/v1/admin/nodes/{name}/disable")["state"] == "disabled"
        with pytest.raises(NotAuthorized, match="disabled"):
            api.hello(Hello(boot="b"))
        admin.call("POST", f"/v1/admin/nodes/{name}/enable")
        api.hello(Hello(boot="b"))


def test_a_revoked_child_is_out_for_ever(master: Running, admin: Https) -> None:
    name = fresh()
    with master.child(name) as api:
        key = master.parts.ledger.node(name).public_key
        admin.call("POST", f"/v1/admin/nodes/{name}/revoke")
        assert key not in master.superlink.ids
        with pytest.raises(NotAuthorized, match="revoked"):
            api.hello(Hello(boot="b"))
        with pytest.raises(Conflict):
            admin.call("POST", f"/v1/admin/nodes/{name}/enable")


def test_an_invitation_from_the_admin(master: Running, admin: Https) -> None:
    told = admin.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": "clinic", "seconds": 60}))
    made = Invitation.decode(told["token"])
    assert made.url == master.parts.url and made.fingerprint == master.tls.fingerprint
    assert 0 < told["expires"] - time.time() <= 61
    with pytest.raises(UsageError, match="seconds"):
        admin.call("POST", "/v1/admin/nodes/invite", '{"seconds": 0}')


def test_tasks_are_what_the_children_told(master: Running, admin: Https) -> None:
    task = fresh("task")
    for samples in (3, 4):
        with master.child(fresh()) as api:
            api.hello(Hello(boot="b", tasks=(TaskCount(task=task, head="single", metric="accuracy", samples=samples),)))
    line = next(one for one in admin.call("GET", "/v1/admin/tasks") if one["task"] == task)
    assert line["samples"] == 7 and line["heads"] == ["single"] and len(line["children"]) == 2


def test_an_encoder_is_made_of_blobs(master: Running, admin: Https, tmp_path: Path) -> None:
    """Given files and an initial set that the CLI made, When it sends them and declares the encoder, Then children can have it."""

    name = fresh("encoder")
    first = encode_set({"w": np.ones((2, 3), np.float32), "n": np.array(5)})
    contents = {"config.json": b"{}", "vocab.txt": name.encode(), "shared": first}
    digests = {}
    for file, data in contents.items():
        (tmp_path / file).write_bytes(data)
        digests[file] = hashlib.sha256(data).hexdigest()
        transfers.send(admin, tmp_path / file, digests[file], None)
    listed = Manifest(files={key: BlobFile(digest=digests[key], size=len(contents[key])) for key in ("config.json", "vocab.txt")})
    manifest = tmp_path / "manifest"
    manifest.write_bytes(listed.encode())
    digest = hashlib.sha256(listed.encode()).hexdigest()
    body = {
        "name": name,
        "type": "text",
        "spec": {"name": name},
        "manifest": digest,
        "first": {"digest": digests["shared"], "size": len(first)},
    }
    with pytest.raises(NotFound, match=digest[:12]):
        admin.call("POST", "/v1/admin/encoders", json.dumps(body))
    transfers.send(admin, manifest, digest, None)
    assert admin.call("POST", "/v1/admin/encoders", json.dumps(body))["current"]["number"] == 1
    assert admin.call("POST", "/v1/admin/encoders", json.dumps(body))["current"]["number"] == 1, "repeating it changes nothing"
    shown = admin.call("GET", f"/v1/admin/encoders/{name}")
    assert shown["shared"] == {"n": [[], "I64"], "w": [[2, 3], "F32"]} and set(shown["files"]) == {"config.json", "vocab.txt"}
    with master.child(fresh()) as api:
        assert set(api.manifest(name, digest)) == {"config.json", "vocab.txt"}
    with pytest.raises(Conflict, match="other content"):
        admin.call("POST", "/v1/admin/encoders", json.dumps(body | {"type": "image"}))
    leak = body | {"name": fresh("encoder"), "first": {"digest": digests["vocab.txt"], "size": len(name)}}
    with pytest.raises(SpecError, match="should not be among"):
        admin.call("POST", "/v1/admin/encoders", json.dumps(leak))
    for wrong, error in ({"digest": digests["shared"], "size": 1}, SpecError), ({"digest": "ab" * 32, "size": 1}, NotFound):
        with pytest.raises(error):
            admin.call("POST", "/v1/admin/encoders", json.dumps(body | {"name": fresh("encoder"), "first": wrong}))
    (tmp_path / "no-set").write_bytes(b"no parameter set")
    junk = hashlib.sha256(b"no parameter set").hexdigest()
    transfers.send(admin, tmp_path / "no-set", junk, None)
    with pytest.raises(DamagedFile):
        admin.call(
            "POST", "/v1/admin/encoders", json.dumps(body | {"name": fresh("encoder"), "first": {"digest": junk, "size": 16}})
        )


def test_versions_their_lineage_and_a_rollback(master: Running, admin: Https) -> None:
    name = encoder_of(master)
    rolled = admin.call("POST", f"/v1/admin/encoders/{name}/rollback", '{"version": 1}')
    assert (rolled["number"], rolled["kind"], rolled["parent_number"]) == (2, "rollback", 1)
    assert [one["number"] for one in admin.call("GET", f"/v1/admin/encoders/{name}/versions")] == [1, 2]
    assert admin.call("GET", f"/v1/admin/encoders/{name}/versions/2")["lineage"] == [2, 1]
    pair = admin.call("GET", f"/v1/admin/encoders/{name}/diff", query={"old": 1, "new": 2})
    assert pair["old"]["digest"] == pair["new"]["digest"] and pair["shared"]
    for path in (f"{name}/versions/9", "nothing-like-it/versions", "nothing-like-it"):
        with pytest.raises(NotFound):
            admin.call("GET", f"/v1/admin/encoders/{path}")
    with pytest.raises(UsageError, match="old"):
        admin.call("GET", f"/v1/admin/encoders/{name}/diff", query={"old": "x", "new": 2})


def test_a_job_is_started_once_by_its_key(master: Running, admin: Https) -> None:
    encoder = encoder_of(master)
    body = json.dumps({"spec": {"encoder": encoder, "rounds": 2}, "name": "nightly", "key": fresh("key")})
    first, again = admin.call("POST", "/v1/admin/jobs", body), admin.call("POST", "/v1/admin/jobs", body)
    assert first["new"] and not again["new"] and first["job"]["id"] == again["job"]["id"]
    assert first["job"]["spec"]["rounds"] == 2 and first["job"]["state"] == "waiting"
    with pytest.raises(Conflict):
        admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": encoder}}))
    assert first["job"]["id"] in master.superlink.woken


@pytest.mark.parametrize(
    ("spec", "named"),
    [({"encoder": "text", "round": 2}, "did you mean `rounds`"), ({"encoder": "text", "rounds": 0}, "rounds"), ({}, "encoder")],
)
def test_a_job_that_is_declared_wrong(admin: Https, spec: dict[str, object], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": spec}))


def test_a_rule_whose_library_is_not_here_is_refused_at_once(
    master: Running, admin: Https, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its first fusion, when a round of everybody's training would be lost."""
    spec = {"encoder": encoder_of(master), "rule": "upgrad+momentum"}
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(SpecError, match=r"torchjd should be installed .* pip install 'trunkline\[conflict\]'"):
        admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": spec}))
    monkeypatch.undo()
    assert admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": spec}))["new"]


def test_a_job_is_paused_resumed_and_aborted(master: Running, admin: Https) -> None:
    job = admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": encoder_of(master)}}))["job"]["id"]
    states = [
        admin.call("POST", f"/v1/admin/jobs/{job}/{verb}", None if verb == "resume" else '{"reason": "r"}')["state"]
        for verb in ("pause", "resume", "abort")
    ]
    assert states == ["paused", "waiting", "aborted"] and master.superlink.woken.count(job) == 4
    with pytest.raises(Conflict, match="aborted"):
        admin.call("POST", f"/v1/admin/jobs/{job}/resume")
    with pytest.raises(NotFound):
        admin.call("POST", "/v1/admin/jobs/nothing-like-it/abort", "{}")


def test_a_round_shows_its_members_updates_weights_and_refusals(master: Running, admin: Https) -> None:
    encoder = encoder_of(master)
    job = admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": encoder}}))["job"]["id"]
    base = master.parts.ledger.version(encoder)
    owned = master.parts.ledger.own(job, "the test")
    owned.open_round(1, base.digest, time.time())
    told = {"task": fresh("task"), "head": "single", "metric": "accuracy", "samples": 3}
    owned.record_confirmation(1, "a", {"tasks": [told]}, True)
    owned.record_confirmation(1, "b", {}, False, "policy", "not at night")
    owned.fix_members(1, ["a"])
    owned.refuse_update(1, "a", "not_finite", "'w' should be finite")
    owned.record_update(1, "a", {"samples": {"t": 3}}, "ab" * 32, 5)
    owned.close_updates(1)
    owned.publish(1, base.digest, base.size, base.digest, {"a": 1.0})
    owned.record_report(1, "a", {"scores": []})
    owned.close_round(1)
    listed = admin.call("GET", f"/v1/admin/jobs/{job}/rounds")
    assert [(one["number"], one["state"]) for one in listed] == [(1, "closed")]
    shown = admin.call("GET", f"/v1/admin/jobs/{job}/rounds/1")
    assert {one["child"]: one["state"] for one in shown["members"]} == {"a": "member", "b": "refused"}
    assert [one["reason"] for one in shown["refusals"]] == ["not_finite"] and shown["weights"] == {"a": 1.0}
    assert len(shown["updates"]) == len(shown["reports"]) == 1
    assert admin.call("GET", f"/v1/admin/jobs/{job}")["rounds"] == listed
    known = {line["task"]: line["children"] for line in admin.call("GET", "/v1/admin/tasks")}
    assert known[told["task"]] == {"a": {"head": "single", "metric": "accuracy", "samples": 3}}, "learned from the confirmation"
    with pytest.raises(NotFound, match="round 2"):
        admin.call("GET", f"/v1/admin/jobs/{job}/rounds/2")


def test_events_are_waited_for(master: Running, admin: Https) -> None:
    job = admin.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": encoder_of(master)}}))["job"]["id"]
    last = admin.call("GET", "/v1/admin/events", query={"job": job})["last"]
    begun = time.monotonic()
    empty = admin.call("GET", "/v1/admin/events", query={"job": job, "after": last, "wait": 0.3})
    assert empty == {"events": [], "last": last} and 0.25 < time.monotonic() - begun < 20

    later = threading.Timer(0.3, lambda: master.parts.ledger.set_job_state(job, "paused", "for a while"))
    later.start()
    told = admin.call("GET", "/v1/admin/events", query={"job": job, "after": last, "wait": 60})
    later.join()
    assert [event["kind"] for event in told["events"]] == ["job.paused"] and told["last"] > last
    with pytest.raises(NotFound):
        admin.call("GET", "/v1/admin/events", query={"job": "nothing-like-it"})
    assert len(admin.call("GET", "/v1/admin/events", query={"limit": 2})["events"]) == 2


def test_the_cli_finds_the_daemon_by_its_folder(master: Running, tmp_path: Path) -> None:
    home = MasterHome(tmp_path)
    home.create()
    with pytest.raises(NotFound, match="admin's token"):
        open_admin(home, SystemClock(), random.Random(0))
    home.admin_token(make=lambda: ADMIN)
    with pytest.raises(Unreachable, match="trunkline serve"):
        open_admin(home, SystemClock(), random.Random(0))
    info = DaemonInfo(pid=os.getpid(), url=master.url, port=master.port, superlink_port=1, started=0.0, version="0")
    home.write_daemon(info)
    (home.tls / "ca.pem").write_text(master.parts.ca)
    with open_admin(home, SystemClock(), random.Random(0)) as https:
        assert isinstance(https.call("GET", "/v1/admin/nodes"), list)


# -- when it cannot be reached -----------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def reach(master: Running, port: int, host: str = "127.0.0.1") -> Unreachable:
    url = f"https://{host}:{port}"
    with Https(url, master.parts.ca, "t", SystemClock(), random.Random(0), SHORT) as https, pytest.raises(Unreachable) as caught:
        https.call("GET", "/healthz")
    return caught.value


def test_nobody_listens(master: Running) -> None:
    port = free_port()
    error = reach(master, port)
    assert all(word in error.message for word in ("127.0.0.1", str(port), "refused", "Tried")) and error.hint
    assert error.exit_code == 4


def test_no_such_host(master: Running) -> None:
    error = reach(master, 8440, "no-such-host.invalid")
    assert "no-such-host.invalid" in error.message and "8440" in error.message


def test_somebody_listens_and_says_nothing(master: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        error = reach(master, silent.getsockname()[1])
        assert "in time" in error.message and time.monotonic() - begun < 20


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", bytes(64)])
def test_somebody_else_listens(master: Running, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            while True:
                try:
                    caller, _ = other.accept()
                except OSError:
                    return
                with caller:
                    caller.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        error = reach(master, other.getsockname()[1])
        other.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert "127.0.0.1" in error.message and "found" in error.message


def test_a_stranger_with_our_certificate_that_speaks_no_http(master: Running) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(master.tls.certificate, master.tls.key)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            while True:
                try:
                    caller, _ = other.accept()
                    with context.wrap_socket(caller, server_side=True) as end:
                        end.recv(1_000)
                        end.sendall(b"220 mail.example ready\r\n")
                except OSError:
                    if other.fileno() < 0:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert "found" in reach(master, other.getsockname()[1]).message
        other.shutdown(socket.SHUT_RDWR)
        other.close()
        thread.join(10)


def test_an_authority_from_nowhere(master: Running) -> None:
    with pytest.raises(Unreachable):
        fetch_authority(f"https://127.0.0.1:{free_port()}", master.tls.fingerprint, SystemClock(), random.Random(0), SHORT)


# -- the server itself -------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(master: Running) -> None:
    with pytest.raises(AlreadyRunning, match=str(master.port)) as caught:
        ApiServer(make_app(master.parts), "127.0.0.1", master.port, master.tls, clock=SystemClock())
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(SettingsError, match=host):
        listen(host, 0).close()


@contextmanager
def speaking(master: Running) -> Iterator[ssl.SSLSocket]:
    """A connection of a stranger."""
    context = ssl.create_default_context(cadata=master.parts.ca)
    raw = socket.create_connection(("127.0.0.1", master.port), timeout=20)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as stranger:
        yield stranger


def everything(stranger: ssl.SSLSocket) -> bytes:
    """What is answered until the connection is closed."""
    told = b""
    with suppress(ConnectionError):
        while part := stranger.recv(65_536):
            told += part
    return told


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
        (b"POST /v1/enrol HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"),
        (b"", b"\r\n"),
    ],
    ids=["a header", "headers", "trailers", "blank lines"],
)
def test_a_head_without_end_takes_no_memory(master: Running, begin: bytes, more: bytes) -> None:
    """Given a stranger whose head never ends, When it is larger than any call of ours, Then the connection is cut."""
    piece, until, cut = more * (16_384 // len(more)), time.monotonic() + 15, False
    with speaking(master) as stranger:
        try:
            stranger.sendall(begin)
            while time.monotonic() < until:
                stranger.sendall(piece)
        except (ConnectionError, ssl.SSLError):
            cut = True
    assert cut, "nobody stopped it"


def test_a_slow_head_is_cut(master: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given strangers who say nothing, half a head, or nothing more after an answer, When it takes too long, Then they are cut."""
    monkeypatch.setattr(MeasuredConnection, "head_seconds", 0.2)
    for said in (b"", b"GET /healthz HTTP/1.1\r\nX: "):
        with speaking(master) as stranger:
            stranger.sendall(said)
            assert b"within 0.2 s" in everything(stranger)
    with speaking(master) as stranger:
        stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: m\r\n\r\n")
        assert stranger.recv(1_000).startswith(b"HTTP/1.1 200")
        stranger.sendall(b"\r\n")  # not the next one, and no silence either
        assert b"within 0.2 s" in everything(stranger)


def test_a_call_that_takes_long_is_not_cut_for_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredConnection, "head_seconds", 0.1)
    with running_master(tmp_path) as master, master.https(ADMIN) as https:
        for _ in range(2):
            assert https.call("GET", "/v1/admin/events", query={"wait": 0.4, "after": 10**6}, retry=False)["events"] == []


class Looked(threading.Event):
    """Says when somebody looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Event()

    def is_set(self) -> bool:
        self.looked.set()
        return super().is_set()


def test_a_long_poll_ends_with_the_master(tmp_path: Path) -> None:
    """Given a caller that waits for events, When the master stops, Then it is answered, and the stop does not wait for it."""
    answers: list[Any] = []
    with running_master(tmp_path, poll_seconds=600.0) as master:
        looked = Looked()
        with ApiServer(
            make_app(replace(master.parts, stopping=looked)), "127.0.0.1", 0, master.tls, clock=SystemClock(), stop_seconds=20.0
        ) as server:

            def wait() -> None:
                url = f"https://127.0.0.1:{server.port}"
                with Https(url, master.parts.ca, ADMIN, SystemClock(), random.Random(0), SHORT) as https:
                    asked = {"wait": 600, "after": 10**6}
                    answers.append(https.call("GET", "/v1/admin/events", query=asked, answer_seconds=60.0, retry=False))

            waiting = threading.Thread(target=wait)
            waiting.start()
            assert looked.looked.wait(30)
            begun = time.monotonic()
        assert time.monotonic() - begun < 15
        waiting.join(30)
    assert answers == [{"events": [], "last": 10**6}]


def test_an_upload_that_hangs_ends_with_the_master(tmp_path: Path) -> None:
    """Given an upload that stalls, When the master stops, Then it is told so, and what had arrived is kept."""
    with running_master(tmp_path, idle_seconds=600.0) as master:
        context = ssl.create_default_context(cadata=master.parts.ca)
        raw = socket.create_connection(("127.0.0.1", master.port), timeout=10)
        digest = "ab" * 32
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as slow:
            head = f"PUT /v1/blobs/{digest} HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 3000000\r\n\r\n"
            slow.sendall(head.encode() + b"x" * 2_000_000)
            deadline = time.monotonic() + 30
            while master.parts.blobs.upload(digest, 1 << 30).have() < 1_000_000 and time.monotonic() < deadline:
                slow.sendall(b"")
            stopping = threading.Thread(target=master.server.stop)
            stopping.start()
            slow.settimeout(20)
            assert b"503" in slow.recv(4_096)
        stopping.join(20)
        assert not stopping.is_alive()
        assert master.parts.blobs.upload(digest, 1 << 30).have() >= 1_000_000, "what had arrived is kept"


def test_it_is_started_again_on_the_same_port_at_once(tmp_path: Path) -> None:
    with running_master(tmp_path) as master:
        port, url = free_port(), ""
        for _ in range(3):
            with ApiServer(make_app(master.parts), "127.0.0.1", port, master.tls, clock=SystemClock(), stop_seconds=2.0) as server:
                url = f"https://127.0.0.1:{server.port}"
                with Https(url, master.parts.ca, None, SystemClock(), random.Random(0), SHORT) as https:
                    assert https.call("GET", "/healthz") == {"status": "ok"}
        assert url.endswith(str(port))
