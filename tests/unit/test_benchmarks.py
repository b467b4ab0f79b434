"""The parts of the measurements that only compute: quotients, medians, the page. What they measure is measured elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import machine
from benchmarks.agent import Shifted
from benchmarks.exchange import SIZES, why
from benchmarks.figures import Aim, Run, Section, between, later, markdown, megabytes, ratio, seconds, table
from benchmarks.fusing import Case, aims, best, specification
from trunkline.sets import SetFile, write_set

TIMES = st.floats(1e-3, 1e3)


@given(TIMES, TIMES)
def test_a_ratio_and_its_opposite_cancel(theirs: float, ours: float) -> None:
    assert ratio(theirs, ours) * ratio(ours, theirs) == pytest.approx(1.0)
    assert (ratio(theirs, ours) > 1) == (theirs > ours)


@pytest.mark.parametrize(("theirs", "ours"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_time_that_is_none_gives_no_ratio(theirs: float, ours: float) -> None:
    with pytest.raises(ValueError, match="times should be positive"):
        ratio(theirs, ours)


@given(TIMES, st.lists(TIMES, min_size=1))
def test_the_first_round_does_not_count(first: float, rest: list[float]) -> None:
    assert later([first, *rest]) == later([first + 1, *rest])
    assert min(rest) <= later([first, *rest]) <= max(rest)


def test_one_round_alone_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="two values"):
        later([1.0])


def test_a_run_tells_its_first_round_apart() -> None:
    run = Run([9.0, 1.0, 3.0, 2.0], [8.0, 0.5, 1.5, 1.0], 100, None)
    assert (run.first, run.usual, run.exchange) == (9.0, 2.0, 1.0)


def test_seconds_between_events_by_round() -> None:
    def event(kind: str, number: int | None, at: float) -> dict[str, object]:
        return {"kind": kind, "round": number, "at": at}

    events = [
        event("job.started", None, 0.0),
        event("open", 2, 20.0),  # rounds in any order
        event("open", 1, 10.0),
        event("members", 1, 10.5),
        event("done", 1, 11.0),
        event("done", 2, 23.0),
        event("open", 3, 30.0),  # never done
    ]
    assert between(events, "open", "done") == [1.0, 3.0]
    assert between(events, "members", "done") == [0.5]


# -- the page ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.text("ab|\n ", max_size=5), min_size=2, max_size=2)))
def test_every_row_of_a_table_has_its_cells_whatever_is_in_them(rows: list[list[str]]) -> None:
    lines = table(("x", "y"), rows)
    assert len(lines) == len(rows) + 2
    for line in lines:
        assert "\n" not in line
        assert line.replace("\\|", "").count("|") == 3


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells, found 1"):
        table(("x", "y"), [("only",)])


def page(*aims: Aim, notes: Sequence[str] = ()) -> str:
    return markdown([Section("Speed", "How fast.", ("a", "b"), [("1", "2")], aims)], {"cores": "2"}, notes)


def test_an_aim_that_was_met_is_told_with_its_figure() -> None:
    told = page(Aim("a round", 20.0, 20.0))
    assert "All aims are met." in told
    assert "- a round: 20 x, aim at least 20 x: met" in told


def test_a_missed_aim_stands_at_the_head_and_with_its_reason() -> None:
    told = page(Aim("a round", 19.99, 20.0, reason="the disk is slow."), Aim("another", 7.0, 6.0))
    assert "All aims are met." not in told
    assert told.index("Missed: a round.") < told.index("## Speed")
    assert "- a round: 19.99 x, aim at least 20 x: **missed**: the disk is slow." in told


def test_the_page_holds_machine_table_and_notes() -> None:
    told = page(notes=["It was busy."])
    for line in ("| cores | 2 |", "| a | b |", "| 1 | 2 |", "- It was busy."):
        assert line in told.splitlines()


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123, "0.012"), (0.9996, "1.000"), (1.0, "1.00"), (10.04, "10.0"), (123.4, "123.4")]
)
def test_seconds_are_short(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_bytes_are_short() -> None:
    assert [megabytes(count) for count in (1_024, 999_999, 1_000_000, 352_000_000, None)] == [
        "1.0 kB",
        "1000.0 kB",
        "1.0 MB",
        "352.0 MB",
        "not told",
    ]


def test_why_an_aim_was_missed_says_what_would_have_been_needed() -> None:
    run = Run([9.0, 2.0], [9.0, 1.5], 1, None)
    told = why(run, times=10.0, least=20.0)
    assert "takes 1.50 s where 0.750 s were needed" in told


def test_the_sizes_are_those_of_the_aims() -> None:
    assert [(size.elements * 4, dict(size.least)) for size in SIZES] == [
        (1_024, {"float32": 20.0}),
        (88_000_000, {"float32": 6.0, "int8": 12.0}),
    ]
    assert all(size.elements % size.tensors == 0 and min(size.stock_rounds, size.our_rounds) >= 2 for size in SIZES)


# -- the machine, and what stands for training ---------------------------------------------------------------------------


def test_the_machine_tells_what_a_reader_needs() -> None:
    told = machine.machine()
    assert {"processor", "cores", "memory", "Python", "versions"} <= set(told)
    assert "flwr 1.42" in told["versions"]
    assert "torch " in told["versions"]
    json.dumps(told)


def test_the_loopback_is_found_among_other_devices() -> None:
    lines = ["Inter-|   Receive  |  Transmit", " face |bytes", "  eth0: 7 1 0", "    lo:  1234 5 0 0 0 0 0 0 1234 5"]
    assert machine.received(lines) == 1234
    assert machine.received(lines[:3]) is None


def test_what_stands_for_training_changes_every_value_and_reads_by_rows(tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.float32)
    write_set(tmp_path / "base", {"w": values})
    with SetFile(tmp_path / "base") as base:
        trained = Shifted(base, 0.5)
        assert trained.read_shared("w", slice(3, 7)).tolist() == (values[3:7] + 0.5).tolist()
        assert trained.read_shared("w", slice(3, 7)).dtype == np.float32
        assert base.read("w").tolist() == values.tolist()


# -- fusing --------------------------------------------------------------------------------------------------------------


def test_the_set_that_is_fused_has_about_as_many_values_as_asked() -> None:
    assert sum(tensor.elements for tensor in specification(22_700_000).values()) == pytest.approx(22_700_000, rel=0.05)


def test_what_takes_long_is_repeated_less_often_and_the_best_counts() -> None:
    def measured(*seconds: float) -> tuple[float, int]:
        times = [time for length in seconds for time in (0.0, length)]
        return best(lambda: None, 4, lambda: times.pop(0)), 4 - len(times) // 2

    assert measured(0.3, 0.2, 0.1, 0.4) == (0.1, 4)
    assert measured(1.5, 1.2, 0.1, 0.1) == (1.2, 2)
    assert measured(9.0, 0.1, 0.1, 0.1) == (9.0, 1)


def test_what_fusing_should_reach_is_computed_from_the_cases() -> None:
    mb = 1 << 20
    cases = [
        Case("flower", 4, False, 4.0, 0.5, 900 * mb),
        Case("mean", 4, False, 1.0, 0.5, 100 * mb),
        Case("flower", 16, False, 16.0, 2.0, 3000 * mb),
        Case("mean", 16, False, 10.0, 2.0, 150 * mb),
    ]
    met = {aim.what: (round(aim.found, 3), aim.met) for aim in aims(cases, 90 * mb)}
    assert met == {
        "the mean of 4, Flower's time over ours": (4.0, True),
        "the mean of 4, a copy's time over ours": (0.5, True),
        "the mean of 16, Flower's time over ours": (1.6, False),
        "the mean of 16, a copy's time over ours": (0.2, False),
        "mean: a set's size over what peaks differ by": (1.8, True),
    }
