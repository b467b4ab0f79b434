"""The record of what was applied, against a plain list: written, torn, cut, bound in size, read while it is written."""

import random
import struct
from pathlib import Path

import pytest

from queues.stream.record import Entry, Record
from queues.stream.recording import RecordWriter
from tests.support.disk import disk
from trunkline.errors import DamagedFile, StorageFailed

PLENTY = 1 << 30


def entry(step: int, **change: object) -> Entry:
    samples = tuple(b"%d:%d" % (step, number) for number in range(step % 4))
    stamps = b"".join(struct.pack(">d", 1000.0 * step + number) for number in range(step % 4))
    about = {"step": step, "batch": f"batch-{step}", "task": "a", "attempt": 1, "base": step - 1, "seed": 2**62 + step}
    return Entry(**{**about, "loss": 0.1 * step, "worker": "é", "samples": samples, "stamps": stamps, **change})  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = RecordWriter(tmp_path, PLENTY)
    assert (record.first, record.last, list(record.since(0)), record.of(1)) == (None, None, [], ())
    written = [entry(step) for step in range(1, 20)]
    for one in written:
        record.append([one])
    two = [entry(20), entry(20, batch="other", task="b", weights={"a": 0.5, "b": 1.5}, state={"dwa/loss/a": 0.25})]
    record.append(two)
    record.append([Entry(21, "round-3")])
    for reader in (record, Record(tmp_path)):
        assert list(reader.since(0)) == [*written, *two, Entry(21, "round-3")]
        assert list(reader.since(18)) == [written[18], *two, Entry(21, "round-3")]
        assert reader.of(20) == tuple(two)
        assert reader.of_batch("other") == two[1]
        assert reader.of_batch("nobody") is None
        assert (reader.first, reader.last) == (1, 21)
        assert reader.last_state() == {"dwa/loss/a": 0.25}
    table = two[1].table()
    assert (table["samples"], table["batch"], table["step"]) == (0, "other", 20)
    record.close()


def test_the_torn_end_of_a_write_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    record = RecordWriter(tmp_path, PLENTY)
    record.append([entry(1)])
    record.append([entry(2)])
    (part,) = record.parts
    whole = part.stat().st_size
    record.append([entry(3)])
    record.close()
    data = part.read_bytes()
    for size in range(whole, len(data)):
        part.write_bytes(data[:size])
        assert [one.step for one in Record(tmp_path).since(0)] == [1, 2], "a reader leaves it out"
        again = RecordWriter(tmp_path, PLENTY)
        assert part.stat().st_size == whole
        again.append([entry(3)])
        assert [one.step for one in again.since(0)] == [1, 2, 3]
        again.close()
    part.write_bytes(data[:whole] + bytes(len(data) - whole))
    RecordWriter(tmp_path, PLENTY).close()
    assert part.stat().st_size == whole, "pages that never reached the disk are zero"


def test_cut_and_undo(tmp_path: Path) -> None:
    record = RecordWriter(tmp_path, PLENTY)
    for step in range(1, 8):
        record.append([entry(step), entry(step, batch="b")])
    record.undo()
    assert record.last == 6
    assert record.cut(4) == 4
    assert [one.step for one in record.since(2)] == [3, 3, 4, 4]
    record.append([entry(5)])
    assert record.last == 5
    assert record.cut(0) == 9
    assert (record.parts, record.last) == ([], None)
    record.append([entry(1)])
    assert record.last == 1
    assert record.cut(5) == 0
    record.close()


def big(step: int) -> Entry:
    return entry(step, samples=(bytes(100_000),), stamps=bytes(8))


def test_its_size_is_bound_but_nothing_goes_that_no_checkpoint_covers(tmp_path: Path) -> None:
    most = 4 << 20
    record = RecordWriter(tmp_path, most)
    for step in range(1, 101):
        record.append([big(step)])
    assert len(record.parts) > 5
    record.prune(0)
    assert record.first == 1
    record.prune(100)
    total = sum(part.stat().st_size for part in record.parts)
    assert most - (2 << 20) < total <= most
    first = next(one.step for one in record.since(0))
    assert record.first == first > 1
    assert [one.step for one in record.since(0)] == list(range(first, 101))
    assert [one.step for one in record.since(97)] == [98, 99, 100]
    assert record.cut(first + 1) == 100 - first - 1
    assert record.last == first + 1
    record.close()


def test_a_bound_of_nothing_writes_nothing(tmp_path: Path) -> None:
    record = RecordWriter(tmp_path / "there", 0)
    record.append([entry(1)])
    record.undo()
    record.sync()
    record.prune(1)
    assert (record.cut(0), record.last, record.parts) == (0, None, [])
    record.close()


def test_damage_in_the_middle_is_told(tmp_path: Path) -> None:
    record = RecordWriter(tmp_path, 1 << 20)
    for step in range(1, 31):
        record.append([big(step)])
    record.close()
    part = record.parts[0]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedFile, match="at byte"):
        list(record.since(0))
    assert [one.step for one in record.since(28)] == [29, 30], "and does not matter elsewhere"


def test_any_bytes_are_a_record_or_an_error_of_ours(tmp_path: Path) -> None:
    rng = random.Random(0)
    record = RecordWriter(tmp_path, PLENTY)
    for step in range(1, 4):
        record.append([entry(step)])
    record.close()
    (part,) = record.parts
    data = part.read_bytes()
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        part.write_bytes(broken)
        assert [one.step for one in Record(tmp_path).since(0)] in ([], [1], [1, 2], [1, 2, 3])


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "1m") as found:
        if found is None:
            pytest.skip("this user may not mount a disk")
        record = RecordWriter(found.folder / "applied", PLENTY)
        record.append([entry(1)])
        found.fill()
        with pytest.raises(StorageFailed):
            record.append([big(2)])
        assert record.last == 1
        found.empty()
        record.append([big(2)])
        assert record.last == 2
        record.close()
