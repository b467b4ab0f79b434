"""The server of our own through everything that can happen to it, to its folder and to the master that started it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queues.embedded import PATH_LIMIT, EmbeddedServer
from queues.redis import RedisQueues
from tests.support.streams import client, close_clients
from trunkline.errors import DeadlineExceeded, FailedError, SettingsError, StorageFailed, TrunklineError

pytestmark = pytest.mark.system


@contextmanager
def ended(*servers: EmbeddedServer) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            close_clients(server)
            server.stop()


def pid_in(folder: Path) -> int:
    return int((folder / "redis.pid").read_text(encoding="ascii"))


def queues_of(server: EmbeddedServer, name: str = "s") -> RedisQueues:
    queues = RedisQueues(client(server), name)
    queues.begin("epoch")
    return queues


def depth(server: EmbeddedServer) -> int:
    return queues_of(server).counts("a").queued


def alive(pid: int) -> bool:
    try:
        return b"valkey" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "redis"


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(folder)
    with ended(made):
        yield made


def test_it_starts_keeps_what_it_was_told_and_stops(server: EmbeddedServer, folder: Path) -> None:
    server.stop()  # nothing runs yet
    assert server.start() is False
    queues = queues_of(server)
    queues.open("a", 2)
    queues.push("a", [b"1", b"2", b"3"])
    assert server.socket == folder / "redis.sock"
    assert folder.stat().st_mode & 0o777 == 0o700
    pid = pid_in(folder)
    server.stop()
    server.stop()
    assert not alive(pid)
    assert not server.socket.exists()
    assert server.start() is False
    assert depth(server) == 3


MASTER = """
import sys, time
from pathlib import Path
from queues.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
print(server.start(), flush=True)
time.sleep(600)
"""


def test_it_outlives_a_master_that_was_killed_and_the_next_takes_it_over(server: EmbeddedServer, folder: Path) -> None:
    master = subprocess.Popen([sys.executable, "-c", MASTER, str(folder)], stdout=subprocess.PIPE)
    assert master.stdout is not None
    assert master.stdout.readline() == b"False\n"
    queues_of(server).open("a", 2)
    queues_of(server).push("a", [b"1"])
    pid = pid_in(folder)
    master.kill()
    master.communicate()
    assert server.start() is True
    assert pid_in(folder) == pid
    assert depth(server) == 1
    server.stop()
    assert not alive(pid)


def test_one_that_hangs_is_replaced(server: EmbeddedServer, folder: Path) -> None:
    server.start()
    queues_of(server).open("a", 2)
    queues_of(server).push("a", [b"1"])
    pid = pid_in(folder)
    os.kill(pid, signal.SIGSTOP)
    other = EmbeddedServer(folder)
    assert other.start() is False
    assert pid_in(folder) != pid
    assert not alive(pid)
    assert depth(other) == 1
    os.kill(pid_in(folder), signal.SIGSTOP)
    other.stop(seconds=0.5)  # does not end by itself
    assert not other.socket.exists() or not alive(pid_in(folder))


def test_a_kill_in_the_middle_of_pushes_loses_nothing_that_was_answered(server: EmbeddedServer, folder: Path) -> None:
    for life in range(3):
        server.start()
        queues = queues_of(server)
        queues.open("a", 10)
        before = queues.counts("a").queued
        killer = threading.Timer(0.01, os.kill, (pid_in(folder), signal.SIGKILL))
        answered = 0
        with pytest.raises(TrunklineError):
            while True:
                queues.push("a", [b"%d" % number for number in range(5)], producer=f"p{life}", first=1 + 5 * answered)
                answered += 1
                if answered == 20:
                    killer.start()
        assert server.start() is False
        assert answered >= 20
        assert depth(server) - before in (5 * answered, 5 * answered + 5), "whole pushes, and all that were answered"
        assert queues_of(server).counts("a").conserved
        assert queues_of(server).push("a", [b"x"] * 5, producer=f"p{life}", first=1 + 5 * answered) == before + 5 * answered + 5


def test_a_number_that_the_system_gave_to_another_program_is_left_alone(server: EmbeddedServer, folder: Path) -> None:
    folder.mkdir()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "redis.conf", "redis.sock"], cwd=folder)
    try:
        (folder / "redis.pid").write_text(f"{other.pid}\n", encoding="ascii")
        assert server.start() is False
        server.stop()
        (folder / "redis.pid").write_text(f"{other.pid}\n", encoding="ascii")
        server.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "0", "-1", "1", "x", "99999999999999999999", "é", "12 13"])
def test_a_file_with_no_number_of_a_process_harms_nobody(text: str, server: EmbeddedServer, folder: Path) -> None:
    folder.mkdir()
    (folder / "redis.pid").write_text(text, encoding="utf-8")
    server.stop()
    assert server.start() is False


def test_another_server_of_this_user_is_left_alone(server: EmbeddedServer, folder: Path, tmp_path: Path) -> None:
    other = EmbeddedServer(tmp_path / "other")
    other.start()
    with ended(other):
        folder.mkdir()
        shutil.copy(tmp_path / "other" / "redis.pid", folder / "redis.pid")
        server.start()
        server.stop()
        assert alive(pid_in(tmp_path / "other"))


@pytest.mark.parametrize("name", ["a b", 'q"uo\\te', "per%41cent", "ha#sh", "quest?ion", "ünï", "new\nline", "$HOME", "{a}*"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / name)
    with ended(server):
        server.start()
        queues_of(server).open("a", 2)
        assert server.socket.parent == tmp_path / name
        assert (tmp_path / name / "redis.pid").is_file()
        assert EmbeddedServer(tmp_path / name).start() is True


def test_a_folder_whose_name_is_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    server = EmbeddedServer(folder)
    with ended(server):
        server.start()
        queues_of(server).open("a", 2)
        queues_of(server).push("a", [b"1"])
        assert len(os.fsencode(server.socket)) <= PATH_LIMIT + 30
        assert server.socket.parent.stat().st_mode & 0o777 == 0o700
        assert EmbeddedServer(folder).start() is True
        pid = pid_in(folder)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # another idea of where temporary files lie
        elsewhere = EmbeddedServer(folder)
        assert elsewhere.socket != server.socket
        with ended(elsewhere, server):
            elsewhere.start()
            assert not alive(pid), "two servers would write into one folder"
            assert depth(elsewhere) == 1


def test_a_folder_of_another_among_the_temporary_files_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = EmbeddedServer(tmp_path / ("x" * 200))
    (tmp_path / "theirs").mkdir()
    server.socket.parent.symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageFailed, match="belong to this user"):
        server.start()
    assert list((tmp_path / "theirs").iterdir()) == []


def test_two_starts_at_once_make_one_server(folder: Path) -> None:
    servers = [EmbeddedServer(folder) for _ in range(4)]
    found: list[object] = []

    def start(server: EmbeddedServer) -> None:
        try:
            found.append(server.start())
        except TrunklineError as error:
            found.append(error)

    with ended(*servers):
        threads = [threading.Thread(target=start, args=(server,)) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, found)) == ["False", "True", "True", "True"]
        assert (
            sum(alive(int(entry.name)) and _works_in(entry, folder) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
            == 1
        )


def _works_in(entry: Path, folder: Path) -> bool:
    try:
        return (entry / "cwd").readlink() == folder
    except OSError:
        return False


def test_a_program_that_cannot_be_started_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program", encoding="utf-8")
    for name in ("missing", "text", "."):
        with pytest.raises(SettingsError, match="can be started"):
            EmbeddedServer(folder, program=tmp_path / name).start()


def test_a_program_that_ends_at_once_is_said(folder: Path) -> None:
    with pytest.raises(FailedError, match="nothing in its log"):
        EmbeddedServer(folder, program=Path(shutil.which("false") or "")).start()


def test_a_program_that_never_answers_runs_into_the_deadline(folder: Path, tmp_path: Path) -> None:
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    idle.chmod(0o755)
    server = EmbeddedServer(folder, program=idle)
    with pytest.raises(DeadlineExceeded, match=r"waited 0\.5 s for the server of the queues"):
        server.start(seconds=0.5)
    assert server._process is not None
    server._process.kill()
    server._process.wait()


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StorageFailed, match="writable"):
        EmbeddedServer(tmp_path / "closed" / "redis").start()
    with pytest.raises(StorageFailed, match="writable"):
        EmbeddedServer(tmp_path / "closed").start()


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "redis"):
        with pytest.raises(StorageFailed, match="file"):
            EmbeddedServer(folder).start()


def increments(folder: Path) -> Path:
    return next((folder / "appendonlydir").glob("*.incr.aof"))


def test_a_torn_end_of_the_data_costs_what_was_not_answered_and_a_damaged_middle_is_said(
    server: EmbeddedServer, folder: Path
) -> None:
    server.start()
    queues = queues_of(server)
    queues.open("a", 2)
    for number in range(10):
        queues.push("a", [b"sample %d" % number])
    server.stop()
    file = increments(folder)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    server.start()
    assert depth(server) == 9
    assert queues_of(server).counts("a").conserved
    server.stop()
    damaged = whole.replace(b"sample 4", b"sam", 1)
    increments(folder).write_bytes(damaged)
    with pytest.raises(FailedError, match=r"(?i)bad file format|append only file") as error:
        server.start()
    assert str(folder / "redis.log") in str(error.value)


READER = """
import os, re, socket, sys
from pathlib import Path
conf = Path(sys.argv[1])
folder, settings = conf.parent, conf.read_text()
(folder / "redis.pid").write_text(str(os.getpid()))
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(folder / "redis.sock"))
listener.listen()
fit = b"redis_version:7.0.0\\r\\naof_enabled:1\\r\\nrole:master\\r\\n"
while True:
    caller, _ = listener.accept()
    while command := caller.recv(10_000):
        if b"INFO" in command and b"SETINFO" not in command:
            loading = (folder / "reads").exists()
            caller.sendall(b"-LOADING its data\\r\\n" if loading else b"$%d\\r\\n%s\\r\\n" % (len(fit), fit))
        else:
            caller.sendall(b"+PONG\\r\\n" if b"PING" in command else b"+OK\\r\\n" * max(1, command.count(b"SETINFO")))
"""


def test_a_server_that_still_reads_its_data_is_waited_for_and_not_ended(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    program = tmp_path / "reader"
    program.write_text(f"#!{sys.executable}\n{READER}", encoding="utf-8")
    program.chmod(0o755)
    (folder / "reads").touch()
    server = EmbeddedServer(folder, program=program)
    with ended(server):
        with pytest.raises(DeadlineExceeded):
            server.start(seconds=1.5)
        while not server.socket.exists():
            time.sleep(0.01)
        pid = pid_in(folder)
        threading.Timer(0.5, (folder / "reads").unlink).start()
        assert EmbeddedServer(folder).start() is True
        assert pid_in(folder) == pid


def test_what_it_says_of_itself_is_what_it_is_recognised_by(server: EmbeddedServer, folder: Path) -> None:
    server.start()
    end = time.monotonic() + 5
    while b"unixsocket:" not in (title := Path(f"/proc/{pid_in(folder)}/cmdline").read_bytes()):
        assert time.monotonic() < end
    assert os.fsencode(server.socket) in title
