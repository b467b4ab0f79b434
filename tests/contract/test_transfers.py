"""Blobs over TLS: cut anywhere, they arrive; what is there does not travel again; bytes leave against grants only.

One suite runs against both kinds of the seam where it can: HTTPS, and copying inside one process.
"""

import errno
import hashlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from child.api import MasterApi
from child.transfer import FolderTransfer, Manifest, Transfer
from master.api.app import make_app
from master.api.serve import ApiServer
from tests.support.api import QUICK, Running, running_master
from tests.support.proxy import Cut, proxy
from trunkline import transfers
from trunkline.api import Manifest as Listed
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import DamagedFile, NotAuthorized, NotFound, Reason, RefusedValue, StorageFailed, TrunklineError, Unreachable
from trunkline.https import Https, Patience

pytestmark = pytest.mark.contract

SIZE = 3_000_000  # bytes; some chunks, and not a whole number of them


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_master(tmp_path_factory.mktemp("master"), idle_seconds=3.0) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A child of the test's own."""
    return "c" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture(autouse=True)
def _a_calm_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Lines that break are nothing that a master's log should shout about."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def some_bytes(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def stored(master: Running, data: bytes) -> str:
    return master.parts.blobs.add_bytes(data)


def written(folder: Path, data: bytes) -> tuple[Path, str]:
    path = folder / "update"
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith((".part", ".tmp"))]


# -- both kinds --------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A child and its way to move bytes."""

    name: str
    transfer: Transfer
    master: Running


def copying(master: Running, child: str) -> FolderTransfer:
    """The in-process kind under the same gate."""
    parts = master.parts

    def where(digest: str) -> Path:
        parts.blobs.size(digest)
        return parts.blobs.path(digest)

    def take(path: Path, digest: str, grant: str) -> None:
        allowed = parts.gate.check(grant, digest=None, direction="up", child=child)
        if path.stat().st_size > allowed.size:
            raise RefusedValue(Reason.SIZE, "too large")
        parts.blobs.add_file(path)

    def check(grant: str, digest: str) -> None:
        parts.gate.check(grant, digest=digest, direction="down", child=child)

    def files(encoder: str, digest: str) -> Manifest:
        parts.ledger.encoder(encoder)
        listed = Listed.decode(parts.blobs.path(digest).read_bytes())
        return {name: (file.digest, file.size) for name, file in listed.files.items()}

    def public(digest: str) -> bool:
        manifests = [encoder.manifest for encoder in parts.ledger.encoders()]
        return any(digest in {d for d, _ in files(one.name, one.manifest).values()} for one in parts.ledger.encoders()) or (
            digest in manifests
        )

    return FolderTransfer(where, take, check, public, files)


@pytest.fixture(params=["https", "copying"])
def site(request: pytest.FixtureRequest, master: Running, name: str) -> Iterator[Site]:
    if request.param == "https":
        with master.child(name) as api:
            yield Site(name, api, master)
    else:
        yield Site(name, copying(master, name), master)


def test_a_granted_set_arrives_and_an_update_leaves(site: Site, tmp_path: Path) -> None:
    data = some_bytes(1)
    digest = stored(site.master, data)
    site.transfer.fetch(digest, SIZE, site.master.down(site.name, digest), tmp_path / "sets" / digest)
    assert (tmp_path / "sets" / digest).read_bytes() == data

    path, made = written(tmp_path, some_bytes(2))
    site.transfer.send(path, made, site.master.up(site.name, 2 * SIZE))
    assert site.master.parts.blobs.path(made).read_bytes() == path.read_bytes()
    assert path.exists() and not leftovers(tmp_path)


def test_both_may_be_repeated(site: Site, tmp_path: Path) -> None:
    digest = stored(site.master, some_bytes(1))
    path, made = written(tmp_path, some_bytes(3))
    for _ in range(3):
        site.transfer.fetch(digest, SIZE, site.master.down(site.name, digest), tmp_path / "set")
        site.transfer.send(path, made, site.master.up(site.name, SIZE))


def test_files_of_an_encoder_need_no_grant_but_its_parameters_do(site: Site, tmp_path: Path) -> None:
    listed = site.master.encoder()
    encoder = site.master.parts.ledger.encoder("text")
    files = site.transfer.manifest("text", encoder.manifest)
    assert files == {name: (file.digest, file.size) for name, file in listed.files.items()}
    for file, (digest, size) in files.items():
        site.transfer.fetch(digest, size, None, tmp_path / file)
        assert hashlib.sha256((tmp_path / file).read_bytes()).hexdigest() == digest
    initial = site.master.parts.ledger.version("text")
    with pytest.raises(NotAuthorized, match="grant"):
        site.transfer.fetch(initial.digest, initial.size, None, tmp_path / "initial")
    assert not (tmp_path / "initial").exists()


Forge = Callable[[Running, str, str], str]
BAD_GRANTS: dict[str, Forge] = {
    "another child's": lambda master, name, digest: master.down("somebody", digest),
    "another digest's": lambda master, name, digest: master.down(name, stored(master, b"other")),
    "the other way's": lambda master, name, digest: master.up(name, SIZE),
    "expired": lambda master, name, digest: master.down(name, digest, seconds=-1.0),
    "changed": lambda master, name, digest: master.down(name, digest)[:-2] + "xx",
    "empty": lambda master, name, digest: "",
    "made up": lambda master, name, digest: "a.b",
}


@pytest.mark.parametrize("kind", BAD_GRANTS)
def test_no_byte_leaves_against_a_bad_grant(site: Site, kind: str, tmp_path: Path) -> None:
    digest = stored(site.master, some_bytes(1))
    before = len(site.master.events("blob.sent"))
    with pytest.raises(NotAuthorized):
        site.transfer.fetch(digest, SIZE, BAD_GRANTS[kind](site.master, site.name, digest), tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert len(site.master.events("blob.sent")) == before


def test_an_update_larger_than_granted_is_refused(site: Site, tmp_path: Path) -> None:
    path, made = written(tmp_path, some_bytes(4))
    with pytest.raises(RefusedValue) as caught:
        site.transfer.send(path, made, site.master.up(site.name, SIZE - 1))
    assert caught.value.reason is Reason.SIZE
    assert not site.master.parts.blobs.has(made)


def test_a_file_that_is_not_what_its_digest_says_is_not_sent(site: Site, tmp_path: Path) -> None:
    path, _ = written(tmp_path, b"these bytes")
    with pytest.raises(DamagedFile):
        site.transfer.send(path, "ab" * 32, site.master.up(site.name, SIZE))


def test_a_set_that_is_not_there(site: Site, tmp_path: Path) -> None:
    digest = "cd" * 32
    grant = site.master.parts.gate.issue(site.name, "j", 1, digest, "down", 5, 60.0)
    with pytest.raises(NotFound, match=digest[:12]):
        site.transfer.fetch(digest, 5, grant, tmp_path / "set")


def test_a_wrong_size_is_noticed(site: Site, tmp_path: Path) -> None:
    digest = stored(site.master, b"five!")
    with pytest.raises(TrunklineError):
        site.transfer.fetch(digest, 4, site.master.down(site.name, digest), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_an_empty_blob_is_a_blob(site: Site, tmp_path: Path) -> None:
    digest = stored(site.master, b"")
    site.transfer.fetch(digest, 0, site.master.down(site.name, digest), tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


# -- connections that break ---------------------------------------------------------------------------------------------

STAGES = {
    "before the handshake": 0,
    "in the handshake": 300,
    "in the headers": 2_600,
    "in the first chunk": 200_000,
    "in the middle": SIZE // 2,
    "near the end": SIZE - 10,
    "after the body": SIZE + 3_000,
}


def through(master: Running, name: str, port: int, patience: Patience = QUICK) -> MasterApi:
    return master.child(name, url=f"https://127.0.0.1:{port}", patience=patience)


@pytest.mark.parametrize("stage", STAGES)
def test_a_download_goes_on_where_it_was_cut(master: Running, name: str, tmp_path: Path, stage: str) -> None:
    data = some_bytes(5)
    digest = stored(master, data)
    cut = Cut(down=STAGES[stage])
    with proxy(master.port, cut, cut) as between, through(master, name, between.port) as api:
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
        assert (tmp_path / "set").read_bytes() == data
        assert between.down < 1.25 * SIZE + 100_000, "what had arrived was not fetched again"
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("stage", STAGES)
def test_an_upload_goes_on_where_it_was_cut(master: Running, name: str, tmp_path: Path, stage: str) -> None:
    data = some_bytes(len(stage))
    path, digest = written(tmp_path, data)
    cut = Cut(up=STAGES[stage])
    with proxy(master.port, cut, cut) as between, through(master, name, between.port) as api:
        api.send(path, digest, master.up(name, SIZE))
        assert master.parts.blobs.path(digest).read_bytes() == data
        assert between.up < 1.25 * SIZE + 300_000, "what had arrived was not sent again"


def test_calls_share_a_connection_and_notice_when_it_was_closed(master: Running, name: str, tmp_path: Path) -> None:
    digest = stored(master, some_bytes(19))
    path, made = written(tmp_path, some_bytes(190))
    with proxy(master.port) as between, through(master, name, between.port) as api:
        for _ in range(3):
            api.version()
            api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
            api.send(path, made, master.up(name, SIZE))
        assert between.connections == 1
        between.drop()
        api.version()
        assert between.connections == 2


def test_a_line_that_breaks_every_300_kb_gets_there_in_the_end(master: Running, name: str, tmp_path: Path) -> None:
    """Given patience for 5 s without progress, When every connection breaks early, Then the many small gains add up."""
    data = some_bytes(6)
    digest = stored(master, data)
    path, made = written(tmp_path, some_bytes(7))
    with proxy(master.port, always=Cut(down=300_000)) as between, through(master, name, between.port) as api:
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
        assert (tmp_path / "set").read_bytes() == data and between.connections >= 10
    with proxy(master.port, always=Cut(up=300_000)) as between, through(master, f"{name}-2", between.port) as api:
        api.send(path, made, master.up(f"{name}-2", SIZE))
        assert master.parts.blobs.has(made) and between.connections >= 10


def test_a_restarted_child_keeps_what_it_had(master: Running, name: str, tmp_path: Path) -> None:
    """Given a child that died in the middle of a download, When it starts again, Then it asks for the rest only."""
    digest = stored(master, some_bytes(8))
    short = Patience(connect=1.0, answer=1.0, progress=0.0)
    with proxy(master.port, always=Cut(down=SIZE // 2)) as between, through(master, name, between.port, short) as api:
        with pytest.raises(Unreachable):
            api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
        assert leftovers(tmp_path)
    with master.child(f"{name}-2") as api:
        api.fetch(digest, SIZE, master.down(f"{name}-2", digest), tmp_path / "set")
        assert 0 < api.moved_down < 0.6 * SIZE
    firsts = [event["first"] for event in master.events("blob.sent") if event["child"] in (name, f"{name}-2")]
    assert firsts[0] == 0 and firsts[-1] == SIZE - api.moved_down


@pytest.mark.parametrize("part", [b"wrong" * 1000, b"x" * (SIZE + 1), b""], ids=["other bytes", "too long", "empty"])
def test_a_bad_part_is_thrown_away(master: Running, name: str, tmp_path: Path, part: bytes) -> None:
    data = some_bytes(9)
    digest = stored(master, data)
    (tmp_path / f".set.{digest[:16]}.part").write_bytes(part)
    with master.child(name) as api:
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
    assert (tmp_path / "set").read_bytes() == data and not leftovers(tmp_path)


def test_a_finished_download_is_not_fetched_again(master: Running, name: str, tmp_path: Path) -> None:
    digest = stored(master, some_bytes(10))
    with master.child(name) as api:
        for _ in range(3):
            api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
        assert api.moved_down == SIZE
        (tmp_path / "set").write_bytes(b"\0" * SIZE)  # damaged since
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
        assert api.moved_down == 2 * SIZE
    assert len([event for event in master.events("blob.sent") if event["child"] == name]) == 2


def test_an_update_that_is_there_is_not_sent_again(master: Running, name: str, tmp_path: Path) -> None:
    """Given an update whose acknowledgement was lost, When it is sent again, Then no byte travels."""
    path, digest = written(tmp_path, some_bytes(11))
    with proxy(master.port) as between, through(master, name, between.port) as api:
        api.send(path, digest, master.up(name, SIZE))
        moved = between.up
        for _ in range(3):
            api.send(path, digest, master.up(name, SIZE))
        assert between.up - moved < 30_000


def test_a_bad_copy_at_the_master_is_told_and_not_kept(master: Running, name: str, tmp_path: Path) -> None:
    digest = stored(master, some_bytes(12))
    master.parts.blobs.path(digest).write_bytes(b"\0" * SIZE)
    with master.child(name) as api, pytest.raises(DamagedFile, match=digest[:12]):
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_not_what_was_promised_are_refused_and_recorded(master: Running, name: str, tmp_path: Path) -> None:
    """A child that lies about the digest of what it sends."""
    path, _ = written(tmp_path, some_bytes(13))
    claimed = hashlib.sha256(name.encode()).hexdigest()
    with master.child(name) as api, pytest.raises(RefusedValue) as caught:
        transfers.send(api._https, path, claimed, master.up(name, SIZE), check=False)
    assert caught.value.reason is Reason.DIGEST
    assert not master.parts.blobs.has(claimed)
    refused = [event for event in master.events("transfer.refused") if event["child"] == name]
    assert refused and refused[-1]["reason"] == "digest" and refused[-1]["digest"] == claimed


def test_one_round_takes_a_few_blobs_of_a_child_and_no_more(master: Running, name: str, tmp_path: Path) -> None:
    with master.child(name) as api:
        for number in range(4):
            path, digest = written(tmp_path, f"{name}{number}".encode())
            api.send(path, digest, master.up(name, SIZE))
        path, digest = written(tmp_path, b"one too many")
        with pytest.raises(NotAuthorized, match="one update"):
            api.send(path, digest, master.up(name, SIZE))
        api.send(path, digest, master.up(name, SIZE, round=2))


def test_two_at_once_and_a_stalled_one_do_not_disturb_each_other(master: Running, name: str, tmp_path: Path) -> None:
    """Given an upload that stalls, When others move their sets, Then they finish while it still hangs."""
    stalled = master.enrol(f"{name}-slow")
    context = ssl.create_default_context(cadata=master.parts.ca)
    raw = socket.create_connection(("127.0.0.1", master.port), timeout=10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as slow:
        digest = hashlib.sha256(b"never sent").hexdigest()
        head = (
            f"PUT /v1/blobs/{digest} HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {stalled.token}\r\n"
            f"X-Trunkline-Grant: {master.up(f'{name}-slow', SIZE)}\r\nContent-Length: 1000\r\n\r\n"
        )
        slow.sendall(head.encode() + b"x" * 10)
        apis = [master.child(f"{name}-{number}") for number in range(3)]
        data = [some_bytes(20 + number) for number in range(3)]
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                folder = tmp_path / str(number)
                folder.mkdir()
                path, made = written(folder, data[number])
                apis[number].send(path, made, master.up(f"{name}-{number}", SIZE))
                apis[number].fetch(made, SIZE, master.down(f"{name}-{number}", made), folder / "back")
                assert (folder / "back").read_bytes() == data[number]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for api in apis:
            api.close()
        assert not failures
        slow.settimeout(15)
        assert b"504" in slow.recv(4_096), "the stalled one is cut after idle_seconds"


def test_a_download_that_nobody_takes_is_cut(master: Running, name: str) -> None:
    """Given a child that asks for a set and then reads nothing, When idle_seconds are over, Then the master lets go of it."""
    size = 32 << 20
    digest = stored(master, bytes(size))
    token = master.enrol(name).token
    context = ssl.create_default_context(cadata=master.parts.ca)
    raw = socket.create_connection(("127.0.0.1", master.port), timeout=10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as lazy:
        lazy.sendall(
            f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {token}\r\n"
            f"X-Trunkline-Grant: {master.down(name, digest)}\r\n\r\n".encode()
        )
        deadline = time.monotonic() + 30
        ended: list[dict[str, object]] = []
        while not ended and time.monotonic() < deadline:
            ended = [event for event in master.events("blob.moved") if event["child"] == name]
            time.sleep(0.05)
    assert ended and int(str(ended[0]["bytes"])) < size


def test_a_master_that_restarts_in_the_middle_costs_the_rest_only(master: Running, name: str, tmp_path: Path) -> None:
    """Given a transfer that is cut, When the master's API is started anew meanwhile, Then the grant is good and the rest comes."""
    data = some_bytes(17)
    digest = stored(master, data)
    path, made = written(tmp_path, some_bytes(180))
    enrolled = master.enrol(name)
    servers: list[ApiServer] = []

    def start(port: int) -> ApiServer:
        app = make_app(replace(master.parts, stopping=threading.Event()))
        servers.append(ApiServer(app, "127.0.0.1", port, master.tls, clock=SystemClock(), stop_seconds=2.0))
        servers[-1].start()
        return servers[-1]

    class Restarts(SystemClock):
        """The pause before the next try is when the master restarts."""

        def sleep(self, seconds: float) -> None:
            servers[-1].stop()
            start(servers[-1].port)

    port = start(0).port
    try:
        for cut in (Cut(down=SIZE // 2), Cut(up=SIZE // 2)):
            with proxy(port, cut) as between:
                url = f"https://127.0.0.1:{between.port}"
                with MasterApi(url, enrolled.ca, enrolled.token, Restarts(), random.Random(0), QUICK) as api:
                    if cut.down:
                        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
                        assert api.moved_down < 1.1 * SIZE
                    else:
                        api.send(path, made, master.up(name, SIZE))
                        assert api.moved_up < 1.7 * SIZE  # what was on the line when it was cut
    finally:
        servers[-1].stop()
    assert len(servers) == 3
    assert (tmp_path / "set").read_bytes() == data and master.parts.blobs.has(made)


def test_every_byte_is_announced_before_it_leaves(master: Running, name: str, tmp_path: Path) -> None:
    """The trace that proves the order of a round: what was sent to whom, in which round, from which byte."""
    digest = stored(master, some_bytes(14))
    with proxy(master.port, Cut(down=SIZE // 3)) as between, through(master, name, between.port) as api:
        api.fetch(digest, SIZE, master.down(name, digest, round=7), tmp_path / "set")
    sent = [event for event in master.events("blob.sent") if event["child"] == name]

    def moved() -> int:
        return sum(int(str(event["bytes"])) for event in master.events("blob.moved") if event["child"] == name)

    assert {(event["job"], event["round"], event["digest"], event["size"]) for event in sent} == {("job-1", 7, digest, SIZE)}
    firsts = [int(str(event["first"])) for event in sent]
    assert firsts[0] == 0 < firsts[-1] and firsts == sorted(firsts)
    deadline = Deadline(SystemClock(), 10.0, "the end of the transfer to be written down")  # after its last byte
    while moved() < SIZE:
        deadline.check()
        time.sleep(0.01)


def test_a_full_disk_is_told_and_nothing_is_half_there(
    master: Running, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = stored(master, some_bytes(15))
    real = transfers._Download._stream

    def full(self: transfers._Download, https: Https, grant: str | None, begin: int, write: Callable[[bytes], object]) -> None:
        def refuse(chunk: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        real(self, https, grant, begin, refuse)

    monkeypatch.setattr(transfers._Download, "_stream", full)
    with master.child(name) as api, pytest.raises(StorageFailed, match="No space left"):
        api.fetch(digest, SIZE, master.down(name, digest), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_grant_that_expires_while_a_download_is_cut_ends_it(master: Running, name: str, tmp_path: Path) -> None:
    digest = stored(master, some_bytes(16))
    grant = master.down(name, digest, seconds=3_600.0)
    clock = SystemClock()
    with proxy(master.port, Cut(down=SIZE // 2)) as between, through(master, name, between.port) as api:
        real = master.parts.gate._clock

        class Later(SystemClock):
            def now(self) -> float:
                return clock.now() + (7_200.0 if between.connections > 1 else 0.0)

        master.parts.gate._clock = Later()
        try:
            with pytest.raises(NotAuthorized, match="expired"):
                api.fetch(digest, SIZE, grant, tmp_path / "set")
        finally:
            master.parts.gate._clock = real
