"""Uploads end in the right blob however they are cut, resumed, repeated and interleaved, or in a refusal that leaves nothing."""

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.blobs import BlobStore
from trunkline.clock import ManualClock, SystemClock
from trunkline.errors import Conflict, DeadlineExceeded, Reason, RefusedValue, StorageFailed

DATA = bytes(range(256)) * 40
NAME = hashlib.sha256(DATA).hexdigest()
SIZE = len(DATA)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", ManualClock())


def parts(store: BlobStore) -> list[Path]:
    return list((store.folder / "parts").iterdir())


def test_an_upload_in_one_piece(store: BlobStore) -> None:
    with store.upload(NAME, SIZE, size=SIZE) as upload:
        assert (upload.have(), upload.done) == (0, False)
        assert upload.write(0, [DATA]) == SIZE
        assert (upload.have(), upload.done) == (SIZE, True)
    store.verify(NAME)
    assert parts(store) == []


def test_without_a_size_it_ends_when_told(store: BlobStore) -> None:
    with store.upload(NAME, SIZE + 100) as upload:
        assert upload.write(0, [DATA]) == SIZE
        assert not upload.done
        assert upload.finish() == SIZE
        assert upload.done and upload.finish() == SIZE
    store.verify(NAME)


def test_it_goes_on_where_it_stopped_also_after_a_restart(store: BlobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield DATA[:1000]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), store.upload(NAME, SIZE, size=SIZE) as upload:
        upload.write(0, broken())
    again = BlobStore(store.folder, ManualClock())
    with again.upload(NAME, SIZE, size=SIZE) as upload:
        assert upload.have() == 1000
        for wrong in (0, 999, 1001, SIZE):
            with pytest.raises(Conflict, match=f"byte 1000, found byte {wrong}"):
                upload.write(wrong, [b"x"])
            with pytest.raises(Conflict, match="byte 1000"):
                upload.write(wrong, [])
        assert upload.write(1000, []) == 1000
        with pytest.raises(Conflict, match="byte 1000"):
            upload.finish()
        assert upload.write(1000, [DATA[1000:2000], DATA[2000:]]) == SIZE
    again.verify(NAME)


def test_wrong_bytes_are_refused_and_leave_nothing(store: BlobStore) -> None:
    wrong = DATA[:-1] + b"X"
    with pytest.raises(RefusedValue, match=NAME) as caught, store.upload(NAME, SIZE, size=SIZE) as upload:
        upload.write(0, [wrong])
    assert caught.value.reason == Reason.DIGEST
    assert not store.has(NAME) and parts(store) == []
    with store.upload(NAME, SIZE, size=SIZE) as upload:
        assert upload.have() == 0
        upload.write(0, [DATA])
    store.verify(NAME)


def test_a_refused_upload_can_begin_again_on_the_same_object(store: BlobStore) -> None:
    with store.upload(NAME, SIZE, size=SIZE) as upload:
        with pytest.raises(RefusedValue):
            upload.write(0, [b"X" * SIZE])
        assert upload.have() == 0
        assert upload.write(0, [DATA]) == SIZE
    store.verify(NAME)


def test_too_much_is_refused_as_soon_as_it_is_known(store: BlobStore) -> None:
    with pytest.raises(RefusedValue, match="at most 10 bytes, found 11") as caught:
        store.upload(NAME, 10, size=11)
    assert caught.value.reason == Reason.SIZE
    drawn = 0

    def endless() -> Iterator[bytes]:
        nonlocal drawn
        while True:
            drawn += 1
            yield b"x" * 100

    for size in (None, 950):
        drawn = 0
        with pytest.raises(RefusedValue, match="at most") as caught, store.upload(NAME, 1000, size=size) as upload:
            upload.write(0, endless())
        assert caught.value.reason == Reason.SIZE
        assert drawn <= 11 and parts(store) == []


def test_what_is_there_already_is_not_sent_again(store: BlobStore) -> None:
    store.add_bytes(DATA)
    with store.upload(NAME, SIZE, size=SIZE) as upload:
        assert (upload.done, upload.have()) == (True, SIZE)

        def chunks() -> Iterator[bytes]:
            yield b"anything"
            raise AssertionError("asked for more")

        assert upload.write(0, chunks()) == SIZE
        assert upload.finish() == SIZE
    store.verify(NAME)
    assert parts(store) == []


def test_no_bytes_at_all_are_a_blob_too(store: BlobStore) -> None:
    name = hashlib.sha256().hexdigest()
    with store.upload(name, 0, size=0) as upload:
        assert not upload.done
        assert upload.write(0, []) == 0
        assert upload.done
    store.verify(name)


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), min_size=1, max_size=60),
    data=st.binary(min_size=0, max_size=3000),
    fresh=st.booleans(),
)
def test_any_interleaving_of_connections_ends_in_the_blob(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]], data: bytes, fresh: bool
) -> None:
    """Three connections send the same bytes, each from where it believes the upload stands, some of them opened anew each time."""
    store = BlobStore(tmp_path_factory.mktemp("blobs"), ManualClock())
    name = hashlib.sha256(data).hexdigest()
    uploads = [store.upload(name, len(data), size=len(data)) for _ in range(3)]
    belief = [0, 0, 0]
    for who, length in [*cuts, (0, len(data)), (0, len(data))]:
        if fresh and length % 2:
            uploads[who].close()
            uploads[who] = store.upload(name, len(data), size=len(data))
        try:
            belief[who] = uploads[who].write(belief[who], [data[belief[who] : belief[who] + length]])
        except Conflict:
            belief[who] = uploads[who].have()
        assert 0 <= uploads[who].have() <= len(data)
    assert all(upload.done for upload in uploads)
    assert store.path(name).read_bytes() == data
    assert parts(store) == []
    for upload in uploads:
        upload.close()


def test_owners_do_not_meet(store: BlobStore) -> None:
    """Bad bytes of one child never get into the upload of another child that promised the same digest."""
    with store.upload(NAME, SIZE, size=SIZE, owner="bad") as bad, store.upload(NAME, SIZE, size=SIZE, owner="../good") as good:
        bad.write(0, [b"X" * 500])
        assert good.have() == 0
        good.write(0, [DATA[:700]])
        assert (bad.have(), good.have()) == (500, 700)
        with pytest.raises(RefusedValue):
            bad.write(500, [b"X" * (SIZE - 500)])
        good.write(700, [DATA[700:]])
    store.verify(NAME)
    assert parts(store) == []


def test_a_late_connection_cannot_touch_the_finished_blob(store: BlobStore) -> None:
    """Its open file has become the blob: writing on would damage it."""
    with store.upload(NAME, SIZE, size=SIZE) as late, store.upload(NAME, SIZE, size=SIZE) as quick:
        late.write(0, [DATA[:100]])
        quick.write(100, [DATA[100:]])
        assert late.done
        assert late.write(100, [b"X" * 50]) == SIZE
        store.delete(NAME)
        with pytest.raises(Conflict, match="byte 0"):
            late.write(150, [b"X" * 50])
        assert late.write(0, [DATA]) == SIZE, "and when it was deleted, it is sent anew"
    store.verify(NAME)


def test_a_full_disk_keeps_what_was_sent(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.write, [1500]

    def write(handle: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(handle, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    with store.upload(NAME, SIZE, size=SIZE) as upload:
        with pytest.raises(StorageFailed, match="No space left"):
            upload.write(0, [DATA[:1000], DATA[1000:2000]])
        assert upload.have() == 1500
        room[0] = 1 << 20
        assert upload.write(1500, [DATA[1500:]]) == SIZE
    store.verify(NAME)


def test_threads_at_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, SystemClock())
    start = threading.Barrier(6)

    def send(_: int) -> bool:
        start.wait(20)
        with store.upload(NAME, SIZE, size=SIZE) as upload:
            offset = upload.have()
            while not upload.done:
                try:
                    offset = upload.write(offset, [DATA[offset : offset + 300]])
                except Conflict:
                    offset = upload.have()
            return upload.done

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(send, range(6)))
    store.verify(NAME)
    assert parts(store) == []


@pytest.mark.skipif(os.name == "nt", reason="flock")
def test_who_holds_a_part_for_ever_is_not_waited_for(store: BlobStore) -> None:
    import fcntl

    with store.upload(NAME, SIZE, size=SIZE) as upload:
        upload.write(0, [DATA[:10]])
        with parts(store)[0].open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(DeadlineExceeded, match="30 s for another upload"):
                upload.write(10, [DATA[10:]])
        assert upload.write(10, [DATA[10:]]) == SIZE
