"""The store in a folder: what its files may suffer, who may have it, and what a reader sees of it."""

import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from queues.store import mapped
from queues.store import reader as reader_module
from queues.store.mapped import ACTIVE, OWNER, SEQUENCE, Mapped
from queues.store.reader import FileReader
from queues.store.store import Verdict
from queues.store.writer import FileWriter, boot_id
from queues.stream.spec import StreamSpec
from tests.support.disk import disk
from tests.support.plain_optim import SHAPES, PlainStore, parameters, read, same, sent, spec_of, stream
from trunkline.clock import ManualClock
from trunkline.errors import (
    AlreadyRunning,
    Conflict,
    DamagedFile,
    DeadlineExceeded,
    Fenced,
    SpecError,
    StorageFailed,
    Unreachable,
)

OPTIMISERS: Mapping[str, Mapping[str, object]] = {
    "adamw": {},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1},
}


class Opened:
    """Writers of one folder, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.writers = folder, []

    def __call__(self, spec: StreamSpec | None = None, start: Mapping[str, Tensor] | None = None, **how: object) -> FileWriter:
        for writer in self.writers:
            writer.close()
        how = {"epoch": "epoch", "boot": "boot-1"} | how
        writer = FileWriter(self.folder, spec or spec_of(), start or parameters(), **how)  # type: ignore[arg-type]
        self.writers = [writer]
        return writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "store")
    yield opened
    for writer in opened.writers:
        writer.close()


def feed(writer: FileWriter, first: int, last: int, checkpoints: tuple[int, ...] = ()) -> None:
    """Batches `first` to `last` of the stream."""
    for number, gradient in enumerate(stream(last + 1)):
        if number >= first:
            writer.apply((gradient,))
            if writer.step in checkpoints:
                writer.checkpoint()


def plain(steps: int, learning: Mapping[str, object] | None = None, more: int = 0) -> dict[str, Tensor]:
    """What the stream comes to, and so many batches of one task."""
    found = PlainStore(spec_of(learning), parameters())
    for gradient in (*stream(steps), *(sent(number, "mood") for number in range(steps, steps + more))):
        found.apply((gradient,))
    return found.values()


def held(store: Opened) -> tuple[int, dict[str, Tensor]]:
    return read(FileReader(store.folder))


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_new_store_begins_where_it_is_told(store: Opened) -> None:
    writer = store()
    assert (writer.recovered.source, writer.recovered.back, writer.step, writer.checkpointed()) == ("new", False, 0, 0)
    assert same(held(store)[1], {name: p.detach() for name, p in parameters().items()})


def test_a_store_goes_on_from_its_map(store: Opened) -> None:
    feed(store(), 0, 4)
    writer = store(start=parameters(seed=1))
    assert (writer.recovered.source, writer.recovered.step, writer.applied("batch-2")) == ("map", 5, 3)
    feed(writer, 5, 9)
    assert same(held(store)[1], plain(10))


def test_after_a_power_cut_the_newest_checkpoint_is_gone_on_from(store: Opened) -> None:
    writer = store()
    feed(writer, 0, 8, checkpoints=(3, 6))
    writer.add({"shared/bias": torch.ones(40)}, "round-1")
    writer = store(boot="boot-2")
    found = writer.recovered
    assert (found.source, found.back, found.step, found.was) == ("checkpoint", True, 6, 10)
    assert found.why is not None
    assert "started again" in found.why
    assert [writer.applied(f"batch-{number}") for number in range(4, 8)] == [5, 6, None, None]
    assert (writer.step, writer.checkpointed()) == (6, 6)
    assert same(held(store)[1], plain(6))
    feed(writer, 6, 9)
    assert same(held(store)[1], plain(10))
    assert writer.add({"shared/bias": torch.ones(40)}, "round-1") == 11


def test_a_round_that_a_checkpoint_covers_is_not_forgotten(store: Opened) -> None:
    writer = store()
    assert writer.add({"shared/bias": torch.ones(40)}, "round-1") == 1
    writer.checkpoint()
    feed(writer, 0, 3, checkpoints=(3, 4, 5))
    writer = store(boot="boot-2")
    assert writer.add({"shared/bias": torch.ones(40)}, "round-1") == 1
    assert writer.step == 5


def test_without_a_checkpoint_a_power_cut_takes_it_back_to_the_beginning(store: Opened) -> None:
    feed(store(), 0, 3)
    writer = store(boot="boot-2")
    assert (writer.recovered.source, writer.recovered.back, writer.recovered.was, writer.step) == ("parameters", True, 4, 0)
    assert writer.applied("batch-0") is None
    feed(writer, 0, 3)
    assert same(held(store)[1], plain(4))


def test_so_many_checkpoints_are_kept(store: Opened) -> None:
    writer = store(spec_of(store={"checkpoints": 3}))
    feed(writer, 0, 8, checkpoints=(2, 4, 6, 8))
    kept = sorted(path.name for path in (store.folder / "checkpoints").iterdir())
    assert kept == [f"{step:012d}" for step in (4, 6, 8)]
    assert (writer.checkpointed(), writer.checkpoint(), writer.checkpoint()) == (8, 9, 9)


def test_what_a_killed_writer_had_in_the_making_goes(store: Opened) -> None:
    store()
    for path in (store.folder / ".map.17.tmp", store.folder / "checkpoints" / "000000000003" / ".state.json.17.ab.tmp"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    store()
    assert list(store.folder.rglob("*.tmp")) == []


def test_this_machine_tells_its_boot() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) in (0, 36)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_any_changed_byte_of_head_and_table_is_found(store: Opened) -> None:
    store().close()
    path = store.folder / "map"
    whole = path.read_bytes()
    length = mapped.HEAD.unpack(whole[: mapped.HEAD.size])[2]
    for place in range(mapped.HEAD.size + length):
        if place in range(20, 24):  # it says nothing
            continue
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 0x11]))
        with pytest.raises(DamagedFile):
            Mapped(path)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(whole[place : place + 1])
    Mapped(path)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 4096, -1])
def test_a_map_that_is_cut_off_is_not_gone_on_from(store: Opened, size: int) -> None:
    feed(store(), 0, 4, checkpoints=(3,))
    store.writers[0].close()
    path = store.folder / "map"
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    writer = store()
    assert (writer.recovered.source, writer.step) == ("checkpoint", 3)
    assert writer.recovered.why is not None
    assert "found" in writer.recovered.why
    assert same(held(store)[1], plain(3))


@pytest.mark.parametrize(
    ("word", "value", "why"),
    [(ACTIVE, 2, "active slot should be 0 or 1"), (SEQUENCE, 0xFF, "half-written"), (SEQUENCE + 1, 0xFF, "half-written")],
)
def test_words_that_cannot_be_are_not_believed(store: Opened, word: int, value: int, why: str) -> None:
    writer = store()
    feed(writer, 0, 4, checkpoints=(3,))
    active = writer._map.active
    writer._map._words[word] = value
    writer = store()
    if word in (SEQUENCE, SEQUENCE + 1) and word != SEQUENCE + active:
        assert (writer.recovered.source, writer.step) == ("map", 5), "the other slot may be as it wants"
        return
    assert (writer.recovered.source, writer.step) == ("checkpoint", 3)
    assert writer.recovered.why is not None
    assert why in writer.recovered.why


@pytest.mark.parametrize("damage", ["cut", "text", "gone", "number"])
def test_a_damaged_list_of_what_was_applied_takes_the_store_to_its_checkpoint(store: Opened, damage: str) -> None:
    feed(store(), 0, 4, checkpoints=(3,))
    path = store.folder / "applied.log"
    text = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": text[7:], "text": b"\n" + text, "number": text.replace(b"[2,", b"[3,")}[damage])
    writer = store()
    assert (writer.recovered.source, writer.step) == ("checkpoint", 3)


def test_half_a_last_line_is_of_a_step_that_never_happened(store: Opened) -> None:
    feed(store(), 0, 4)
    path = store.folder / "applied.log"
    path.write_bytes(path.read_bytes() + b'[6, "batch", "batch-5"] 1234')
    writer = store()
    assert (writer.recovered.source, writer.step, writer.applied("batch-5")) == ("map", 5, None)
    feed(writer, 5, 6)
    assert store().applied("batch-5") == 6


@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["first", "middle", "last", "cut", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(store: Opened, file: str, how: str) -> None:
    feed(store(), 0, 7, checkpoints=(3, 6))
    path = store.folder / "checkpoints" / f"{6:012d}" / file
    whole = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(whole[:-1])
    else:
        whole[{"first": 0, "middle": len(whole) // 2, "last": -1}[how]] ^= 1
        path.write_bytes(whole)
    writer = store(boot="boot-2")
    assert (writer.recovered.source, writer.step, writer.checkpointed()) == ("checkpoint", 3, 3)
    assert same(held(store)[1], plain(3))
    feed(writer, 3, 7, checkpoints=(6, 8))
    assert same(held(store)[1], plain(8))
    assert sorted(path.name for path in (store.folder / "checkpoints").iterdir()) == [f"{step:012d}" for step in (6, 8)]
    assert store(boot="boot-3").step == 8


def test_where_every_checkpoint_is_damaged_it_begins_anew_and_says_why(store: Opened) -> None:
    feed(store(), 0, 7, checkpoints=(3, 6))
    for path in (store.folder / "checkpoints").glob("*/state.safetensors"):
        path.write_bytes(b"x" + path.read_bytes()[1:])
    writer = store(boot="boot-2")
    assert (writer.recovered.source, writer.step) == ("parameters", 0)
    assert writer.recovered.why is not None
    assert writer.recovered.why.count("found others") == 2


def test_a_checkpoint_of_a_state_that_lies_is_none(store: Opened) -> None:
    feed(store(), 0, 7, checkpoints=(3, 6))
    older, newer = (store.folder / "checkpoints" / f"{step:012d}" for step in (3, 6))
    shutil.copy(older / "state.json", newer / "state.json")
    assert store(boot="boot-2").step == 3


# -- whose it is -------------------------------------------------------------------------------------------------------


def test_a_store_of_another_epoch_is_refused(store: Opened) -> None:
    feed(store(), 0, 3, checkpoints=(2,))
    with pytest.raises(Conflict, match="other"):
        store(epoch="other")
    (store.folder / "map").unlink()
    with pytest.raises(Conflict, match="other"):
        store(epoch="other")
    assert store().step == 2


def test_a_second_writer_is_refused_and_leaves_the_first_as_it_was(store: Opened) -> None:
    first = store()
    with pytest.raises(AlreadyRunning):
        FileWriter(store.folder, spec_of(), parameters(), "epoch")
    feed(first, 0, 3)
    assert same(held(store)[1], plain(4))


def test_a_writer_that_lost_the_folder_stops_writing(store: Opened) -> None:
    writer = store()
    feed(writer, 0, 2)
    before = held(store)
    writer._map._words[OWNER] += 1
    for wrong in (
        lambda: writer.apply((sent(5, "mood"),)),
        lambda: writer.add({}, "round"),
        lambda: writer.done("batch-5", 1, Verdict.APPLIED),
        writer.checkpoint,
    ):
        with pytest.raises(Fenced):
            wrong()
    assert held(store)[0] == before[0]
    assert same(held(store)[1], before[1])


def test_another_head_may_come_and_go(store: Opened) -> None:
    few = {name: p for name, p in parameters().items() if "topic" not in name}
    writer = store(start=few)
    writer.apply((sent(0, "mood"),))
    writer = store(start=parameters(seed=1))
    assert (writer.recovered.source, writer.step) == ("map", 1)
    assert sorted(writer.recovered.begun) == ["head/topic/bias", "head/topic/weight"]
    values = held(store)[1]
    assert torch.equal(values["head/topic/bias"], parameters(seed=1)["head/topic/bias"])
    writer.apply((sent(1, "topic"),))
    store(start=few).apply((sent(2, "mood"),))
    learned = PlainStore(spec_of(), parameters() | {n: p for n, p in parameters(seed=1).items() if "topic" in n})
    for number, task in enumerate(("mood", "topic", "mood")):
        learned.apply((sent(number, task),))
    into = {name: torch.empty(SHAPES[name]) for name in few}
    FileReader(store.folder).read(into)
    assert same(into, {name: value for name, value in learned.values().items() if name in few})


@pytest.mark.parametrize("before", OPTIMISERS)
@pytest.mark.parametrize("after", OPTIMISERS)
def test_another_optimiser_begins_with_moments_of_its_own(store: Opened, before: str, after: str) -> None:
    """And the same one goes on with what it had."""
    feed(store(spec_of(OPTIMISERS[before])), 0, 4)
    values = held(store)[1]
    writer = store(spec_of(OPTIMISERS[after]))
    assert (writer.recovered.source, writer.step) == ("map", 5)
    learned = PlainStore(spec_of(OPTIMISERS[after]), {name: torch.nn.Parameter(value) for name, value in values.items()})
    learned.step = 5
    for number in (5, 6):
        learned.apply((sent(number, "mood"),))
        writer.apply((sent(number, "mood"),))
    if before == after != "sgd":
        assert same(held(store)[1], plain(5, OPTIMISERS[after], more=2))
    else:
        assert same(held(store)[1], learned.values())


@pytest.mark.parametrize(
    "wrong",
    [{"shared/bias": (41,)}, {"head/mood/bias": (4,)}, {"shared/other": (3,)}],
    ids=["shape", "shape-of-a-head", "another-encoder"],
)
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_other_shapes_are_refused_and_the_store_stays(store: Opened, wrong: Mapping[str, tuple[int, ...]], boot: str) -> None:
    feed(store(), 0, 4, checkpoints=(5,))
    with pytest.raises(SpecError):
        store(start=parameters(shapes={**SHAPES, **wrong}), boot=boot)
    writer = store()
    assert (writer.recovered.source, writer.step) == ("map", 5)
    assert same(held(store)[1], plain(5))


# -- readers -----------------------------------------------------------------------------------------------------------


class SlowReader(FileReader):
    """While it copies one parameter, the writer makes so many steps."""

    def __init__(self, folder: Path, writer: FileWriter, steps: int, times: int) -> None:
        super().__init__(folder, clock=ManualClock())
        self.writer, self.steps, self.left, self.copies = writer, steps, times, 0

    def _copy(self, name: str, source: object, tensor: Tensor) -> None:
        super()._copy(name, source, tensor)  # type: ignore[arg-type]
        self.copies += 1
        if name == "shared/bias" and self.left:
            self.left -= 1
            feed(self.writer, self.writer.step, self.writer.step + self.steps - 1)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0), (2, 2), (3, 3), (4, 4), (5, 5)])
def test_a_slow_reader_gets_all_of_one_step(store: Opened, steps: int, expected: int) -> None:
    """Given a writer that comes round to the slot that is being copied, Then it is copied again; else it is as good as it was."""
    reader = SlowReader(store.folder, store(), steps, times=1)
    step, found = read(reader)
    assert step == expected
    assert same(found, plain(expected))


def test_a_reader_that_is_always_too_slow_gives_up(store: Opened) -> None:
    writer = store(spec_of({"optimizer": "sgd"}))
    reader = SlowReader(store.folder, writer, 2, times=10**9)
    reader._seconds = 0.01
    with pytest.raises(DeadlineExceeded, match="not changed"):
        read(reader)


def test_a_slot_that_is_being_written_is_not_copied(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a reader that looked which slot is active, and stood still until the writer was in the middle of that one again."""
    writer = store()
    feed(writer, 0, 4)
    other = 1 - writer._map.active
    writer._map.begin(other)
    answers = [other]

    class Late(Mapped):
        @property
        def active(self) -> int:
            return answers.pop() if answers else super().active

    monkeypatch.setattr(reader_module, "Mapped", Late)
    reader = FileReader(store.folder, clock=ManualClock())
    step, found = read(reader)
    assert answers == []
    assert step == 5
    assert same(found, plain(5))


def test_a_reader_waits_for_no_writer(store: Opened) -> None:
    """Given a writer that died while it wrote, Then the slot that is active is read as ever."""
    writer = store()
    feed(writer, 0, 4)
    writer._map.begin(1 - writer._map.active)
    assert held(store)[0] == 5
    assert same(held(store)[1], plain(5))


def test_before_there_is_a_store_a_reader_says_so(tmp_path: Path) -> None:
    reader = FileReader(tmp_path)
    for wrong in (reader.step, lambda: read(reader), lambda: reader.send(sent(0, "mood")), lambda: reader.verdict("x", 1, 0.0)):
        with pytest.raises(Unreachable, match="map"):
            wrong()


def test_a_reader_goes_over_to_a_store_that_is_made_anew(store: Opened) -> None:
    feed(store(), 0, 4, checkpoints=(3,))
    reader = FileReader(store.folder)
    assert read(reader)[0] == 5
    writer = store(boot="boot-2")
    step, found = read(reader)
    assert step == 3
    assert same(found, plain(3))
    reader.send(sent(3, "mood"))
    assert writer.received("batch-3", 1) is not None
    writer.done("batch-3", 1, Verdict.STALE)
    assert reader.verdict("batch-3", 1, 0.0) == Verdict.STALE


def test_a_reader_of_a_damaged_store_says_so(store: Opened) -> None:
    store().close()
    path = store.folder / "map"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(DamagedFile):
        FileReader(store.folder).step()


def test_a_verdict_is_looked_for_often_at_first(store: Opened) -> None:
    store()
    clock = ManualClock()
    assert FileReader(store.folder, clock=clock).verdict("batch-0", 1, 2.0) is None
    assert max(clock.slept[:100]) <= 0.001
    assert max(clock.slept) <= 0.005
    assert sum(clock.slept) == pytest.approx(2.0)
    assert len(clock.slept) < 1000


@pytest.mark.parametrize("place", range(32))
def test_a_verdict_that_is_half_written_is_none(store: Opened, place: int) -> None:
    writer = store()
    writer.done("batch-0", 1, Verdict.APPLIED)
    ring = writer._map.verdicts
    ring._data[ring._start + place] ^= 0x11
    assert FileReader(store.folder).verdict("batch-0", 1, 0.0) is None


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_store_that_does_not_fit_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with disk(tmp_path / "small", "1m") as small:
        if small is None:
            pytest.skip("this user may not mount")
        with pytest.raises(StorageFailed, match="No space"):
            FileWriter(small.folder / "store", spec_of(), parameters(), "epoch")
        assert not list(small.folder.rglob("*map*"))


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    """Given a disk that fills up, Then gradients, steps and checkpoints are refused whole; when it has room again, all goes on."""
    with disk(tmp_path / "small", "12m") as small:
        if small is None:
            pytest.skip("this user may not mount")
        folder = small.folder / "store"
        writer, reader = FileWriter(folder, spec_of(), parameters(), "epoch"), FileReader(folder)
        feed(writer, 0, 3, checkpoints=(2,))
        small.fill()
        with pytest.raises(StorageFailed, match="No space"):
            reader.send(sent(4, "mood"))
        gradient = replace(sent(4, "mood"), batch="batch-" + 5000 * "4")  # its line needs a page of its own
        with pytest.raises(StorageFailed, match="No space"):
            writer.apply((gradient,))
        assert writer.applied(gradient.batch) is None
        with pytest.raises(StorageFailed, match="No space"):
            writer.checkpoint()
        assert (writer.step, writer.checkpointed()) == (4, 2)
        assert same(read(reader)[1], plain(4))
        small.empty()
        feed(writer, 4, 7, checkpoints=(6,))
        assert same(read(reader)[1], plain(8))
        writer.close()
        writer = FileWriter(folder, spec_of(), parameters(), "epoch")
        assert writer.step == 8
        writer.close()


def test_a_step_that_fails_half_way_leaves_nothing(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given memory that ran out in the middle of a step, When the batch comes again, Then nothing of the first time is there."""
    writer = store(spec_of({"lazy": True}))
    for number in range(3):
        writer.apply((sent(number, "mood", rows=True),))
    before = held(store)
    whole = writer._mover.move
    for fail_after in ("rows", "all"):

        def fail(old: object, new: object, step: object, after: str = fail_after) -> None:
            if after == "all":
                whole(old, new, step)  # type: ignore[arg-type]
            else:
                new.values["shared/embedding"].add_(1.0)  # type: ignore[attr-defined]
            raise MemoryError

        with monkeypatch.context() as patch, suppress(MemoryError):
            patch.setattr(writer._mover, "move", fail)
            writer.apply((sent(3, "mood", rows=True),))
        assert held(store)[0] == before[0]
        assert same(held(store)[1], before[1])
        writer.apply((sent(10 + writer.step, "topic", skip=("shared/embedding",)),))
        before = held(store)
    other = Opened(store.folder.with_name("other"))
    straight = other(spec_of({"lazy": True}))
    for number in range(3):
        straight.apply((sent(number, "mood", rows=True),))
    for number in (13, 14):
        straight.apply((sent(number, "topic", skip=("shared/embedding",)),))
    assert same(held(store)[1], held(other)[1])
    straight.close()


def test_the_file_has_the_form_that_its_head_tells(store: Opened) -> None:
    store()
    head = (store.folder / "map").read_bytes()[:32]
    assert struct.unpack("<8sI", head[:12]) == (b"TRUNKSTO", 1)
