"""Seeded tensors: any part of them is what the whole has there, by the plain version, for any cut, and on any processor."""

import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from math import erf, prod, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tasks.seeded import quantiles
from tasks.seeded.bits import Aes, Mode, Philox, key_of
from tasks.seeded.grid import BATCH, BATCH_OF_SEVERAL, TILE, grid_of, places, rectangles
from tasks.seeded.laws import Constant, Law, Normal, Truncated, Uniform, fans, kaiming, xavier
from tasks.seeded.tensor import SeededTensor
from tests.support import philox
from tests.support.seeded import GOLDEN, LAWS, SHAPES, digest
from trunkline.errors import FailedError, SpecError, UsageError

MODES: tuple[Mode, ...] = ("portable", "fast")


# -- the bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "counter", "key", "words"),
    [
        (32, "0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (32, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (32, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
        (64, "0 0 0 0", "0 0", "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ],
)
def test_the_plain_philox_gives_the_known_answers_of_random123(width: int, counter: str, key: str, words: str) -> None:
    numbers = [[int(word, 16) for word in text.split()] for text in (counter, key, words)]
    assert list(philox.philox4x(width, numbers[0], numbers[1])) == numbers[2]


@given(key=st.binary(min_size=16, max_size=16), first=st.integers(0, 2**60), count=st.integers(1, 2), size=st.sampled_from([4, 16]))
def test_the_words_of_a_tile_are_philox_of_its_counts(key: bytes, first: int, count: int, size: int) -> None:
    found = Philox(key, size).words([(first, count)])
    pair = (int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    counts = [first * size // 4 + 1 + number for number in range(count * size // 4)]
    assert found.tolist() == [word for n in counts for word in philox.philox4x(64, (n % 2**64, n >> 64, 0, 0), pair)]


@pytest.mark.parametrize("mode", MODES)
def test_words_do_not_depend_on_what_was_asked_for_before(mode: Mode) -> None:
    key = key_of(1, "a")
    make = (lambda: Philox(key, 64)) if mode == "portable" else (lambda: Aes(key, 64, 8))
    alone = {tile: make().words([(tile, 1)]).tolist() for tile in (0, 1, 2, 5, 6, 10**12)}
    one = make()
    for runs in ([(5, 2)], [(0, 1), (2, 1)], [(1, 2), (10**12, 1)], [(0, 3)]):
        wanted = [word for first, count in runs for tile in range(first, first + count) for word in alone[tile]]
        assert one.words(runs).tolist() == wanted
    assert len({tuple(words) for words in alone.values()}) == len(alone)


def test_no_count_is_used_twice() -> None:
    """Tiles of one tensor are disjoint intervals of counts; tensors differ in the key."""
    for shape in SHAPES:
        grid = grid_of(shape)
        counts = sorted({grid.tile(m, i, j) for m in range(3) for i in range(grid.down) for j in range(grid.across)})
        assert counts == list(range(3 * grid.down * grid.across))
    names = [f"layer.{number}" for number in range(1000)]
    assert len({key_of(seed, name) for seed in (0, 1, 2) for name in names}) == 3000
    assert key_of(1, "2/a") != key_of(12, "a")


# -- the tables ------------------------------------------------------------------------------------------------------------


def test_the_table_holds_the_means_of_equally_likely_bins() -> None:
    normal = NormalDist()
    edges = [normal.inv_cdf(number / quantiles.BINS) for number in range(1, quantiles.BINS)]
    heights = np.array([0.0, *map(normal.pdf, edges), 0.0])
    means = (heights[:-1] - heights[1:]) * quantiles.BINS
    wanted = means / np.sqrt(2 * (means**2).mean())
    table = quantiles.normal_table()
    assert np.abs(table - wanted).max() <= 2**-24 * 4  # half a unit in the last place at 4
    assert (np.diff(table) > 0).all() and (table == -table[::-1]).all() and not table.flags.writeable
    assert hashlib.sha256(table.astype("<f4").tobytes()).hexdigest() == quantiles.DIGEST


def test_a_machine_that_computes_another_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "_FEW", 1)
    quantiles.normal_table.cache_clear()
    with pytest.raises(
        FailedError, match=r"the table of the normal distribution should have digest 81e6e5c6c411, found .*IEEE 754"
    ):
        quantiles.normal_table()


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-4.5, 4.5), (3.0, 4.0)])
def test_a_truncated_table_holds_the_edges_of_equally_likely_bins(low: float, high: float) -> None:
    normal = NormalDist()
    ends = normal.cdf(low), normal.cdf(high)
    edges = np.array(
        [low, *(normal.inv_cdf(ends[0] + k / quantiles.BINS * (ends[1] - ends[0])) for k in range(1, quantiles.BINS)), high]
    )
    table = quantiles.truncated_table(low, high)
    assert np.abs(table[0] - edges[:-1]).max() < 5e-7
    assert np.abs(table[1] - np.diff(edges)).max() < 1e-9 * max(1.0, 1e3 * np.diff(edges).max())


# -- the values ------------------------------------------------------------------------------------------------------------


def plain(tensor: SeededTensor, at: Sequence[int]) -> np.float32:
    """An element as docs/seeded.md says it."""
    law, half = tensor.law, TILE // 2
    tile, place = philox.tile_and_place(tensor.shape, at)
    if isinstance(law, Constant):
        return np.float32(law.value)
    if isinstance(law, Normal):
        table = quantiles.normal_table()
        a, b = (table[philox.bits(tensor.seed, tensor.name, tile, place % half + part, 16)] for part in (0, half))
        return (a + b if place < half else a - b) * np.float32(law.std) + np.float32(law.mean)
    bits = philox.bits(tensor.seed, tensor.name, tile, place, 32)
    if isinstance(law, Uniform):
        standard = np.float32((2 * (bits >> 8) + 1 - 2**24) * 2.0**-24)
        return standard * np.float32((law.high - law.low) / 2) + np.float32((law.high + law.low) / 2)
    lower, width = quantiles.truncated_table(*law.bounds())
    inner = np.float32((bits % 2**16 + 0.5) * 2.0**-16)
    return (lower[bits >> 16] + width[bits >> 16] * inner) * np.float32(law.std) + np.float32(law.mean)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_is_that_of_the_plain_version(law: Law, shape: tuple[int, ...]) -> None:
    tensor = SeededTensor(11, "layer.weight", shape, law)
    whole = tensor.read()
    assert whole.shape == shape and whole.dtype == np.float32
    rng = np.random.default_rng(0)
    corners = [tuple(0 for _ in shape), tuple(length - 1 for length in shape)]
    for at in [*corners, *(tuple(int(rng.integers(length)) for length in shape) for _ in range(40))]:
        assert whole[at] == plain(tensor, at), at


@pytest.mark.parametrize(("kind", "mode"), GOLDEN)
def test_values_are_frozen(kind: str, mode: Mode) -> None:
    assert digest(kind, mode) == GOLDEN[kind, mode]


@pytest.mark.parametrize(
    "left_out", [pytest.param("AVX2 FMA3", marks=pytest.mark.slow), "AVX2 FMA3 F16C AVX POPCNT SSE42 SSE41 SSSE3"]
)
def test_values_are_the_same_whatever_the_processor_can(left_out: str) -> None:
    """numpy chooses its code by what the processor can; here it is told that it can less."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.seeded"],
        cwd=Path(__file__).parents[3],
        env={"NPY_DISABLE_CPU_FEATURES": left_out, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.split() == list(GOLDEN.values()), done.stderr


# -- any part ------------------------------------------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    """A shape, and for some of its axes a slice with a step or single places."""
    shape = draw(st.sampled_from([shape for shape in SHAPES if shape]))
    index: list[Any] = []
    for length in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            start, stop = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
            index.append(slice(start, stop, draw(st.sampled_from([None, 1, 2, 3, 64, 65, 200]))))
        else:
            index.append(sorted(draw(st.sets(st.integers(0, length - 1), max_size=5))))
    return shape, index


@settings(max_examples=60)
@given(cut=cuts(), law=st.sampled_from(LAWS), mode=st.sampled_from(MODES), threads=st.integers(1, 3))
def test_a_part_is_what_the_whole_has_there(cut: tuple[tuple[int, ...], list[Any]], law: Law, mode: Mode, threads: int) -> None:
    shape, index = cut
    tensor = SeededTensor(3, "w", shape, law, mode=mode)
    whole = tensor.read()
    wanted = whole
    for axis, said in enumerate(index):
        kept = np.arange(shape[axis])[said] if isinstance(said, slice) else np.array(said, np.int64)
        wanted = np.take(wanted, kept, axis=axis)
    found = tensor.read(*index, threads=threads)
    assert found.shape == wanted.shape and np.array_equal(found, wanted)


@given(
    shape=st.sampled_from([(300, 520), (1000,), (3, 290, 270), (64, 8, 3, 3)]),
    mesh=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (3, 5), (16, 1), (1, 7)]),
    mode=st.sampled_from(MODES),
)
def test_the_shards_of_any_mesh_make_the_whole(shape: tuple[int, ...], mesh: tuple[int, int], mode: Mode) -> None:
    tensor = SeededTensor(3, "w", shape, Normal(), mode=mode)
    whole = tensor.read()
    found = np.full_like(whole, np.nan)
    for rows in np.array_split(np.arange(shape[0]), mesh[0]):
        for columns in np.array_split(np.arange(shape[-1]), mesh[1]) if len(shape) > 1 else [None]:
            index = [rows] if columns is None else [rows, *[slice(None)] * (len(shape) - 2), columns]
            where = np.ix_(*(np.arange(n)[said] if isinstance(said, slice) else said for n, said in zip(shape, index, strict=True)))
            found[where] = tensor.read(*index)
    assert np.array_equal(found, whole)


def test_rows_are_made_by_their_numbers_and_padding_is_zero() -> None:
    table = SeededTensor(3, "embeddings", (1000, 48), Normal(std=0.02), zero_rows=(7,))
    whole = table.read()
    ids = [999, 7, 3, 3, 0, 512]
    assert np.array_equal(table.rows(ids), whole[ids]) and table.rows([]).shape == (0, 48)
    assert not whole[7].any() and (whole[np.arange(1000) != 7].std(1) > 0.01).all()
    assert np.array_equal(table.read(slice(4, 9), slice(10, 20)), whole[4:9, 10:20])


def test_an_array_that_is_there_is_filled_in_place() -> None:
    tensor = SeededTensor(3, "w", (130, 300), Normal())
    wide = np.zeros((130, 600), np.float32)
    tensor.fill(wide[:, 100:400])
    assert np.array_equal(wide[:, 100:400], tensor.read()) and not wide[:, :100].any() and not wide[:, 400:].any()
    with pytest.raises(UsageError, match=r"`out` should be F32 \(130, 300\), found float32 \(130, 600\)"):
        tensor.fill(wide)
    with pytest.raises(UsageError, match="`out` should have axes that can be merged"):
        SeededTensor(3, "w", (30, 20, 5), Normal()).fill(np.zeros((30, 20, 7), np.float32)[:, :, :5])


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ((slice(None), 3), "at most 1 axes"),
        ((range(5, 0, -1),), "rising places below 10"),
        (([3, 3],), "rising places below 10"),
        (([10],), "rising places below 10"),
        (([-1, 2],), "rising places below 10"),
        ((slice(None, None, -1),), "rising places below 10"),
    ],
)
def test_places_that_are_not_there_are_refused(index: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SeededTensor(1, "w", (10,), Normal()).read(*index)


GOOD: dict[str, Any] = {"seed": 1, "name": "w", "shape": (4, 4), "law": Normal()}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seed": -1}, "`seed`"),
        ({"dtype": "I64"}, "`dtype` should be one of BF16, F16, F32, F64"),
        ({"mode": "quick"}, "`mode`"),
        ({"zero_rows": (4,)}, "`zero_rows`"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SeededTensor(**GOOD | wrong)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_several_threads_whose_batches_are_larger_make_the_same(law: Law, mode: Mode) -> None:
    """Of more tiles than two batches, down and across, whole and in part."""
    tensor = SeededTensor(5, "w", (3 * 64 + 7, (BATCH_OF_SEVERAL + 3) * 64), law, mode=mode)
    for index in ((), (slice(70, None), slice(1, None, 2))):
        assert tensor.read(*index, threads=3).tobytes() == tensor.read(*index).tobytes()


@pytest.mark.parametrize("batch", [BATCH, BATCH_OF_SEVERAL])
def test_a_shard_makes_few_tiles_that_it_does_not_need(batch: int) -> None:
    """An eighth, along any axis, of what has 512 or more there: at most a sixth of the work, in tiles."""
    for shape in [(512, 512), (2048, 4096), (1024, 768), (32768,), (8, 1024, 1024), (512, 512, 3, 3)]:
        grid = grid_of(shape)
        for axis, length in enumerate(shape):
            if length < 8 or (length < 512 and axis):
                continue
            index = [slice(None)] * len(shape)
            index[axis] = slice(length // 8, length // 4)
            part, whole = (
                sum(one.rows.tiles * one.columns.tiles for one in rectangles(grid, places(i, shape), batch)) for i in (index, [])
            )
            assert whole == -(-prod(shape) // TILE) and part * 6 <= whole, (shape, axis)


@pytest.mark.parametrize(
    "index", [(slice(None), slice(None)), (slice(0, 512), slice(None)), (slice(None), slice(1000, 1300))], ids=str
)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_memory_is_that_of_the_part_and_of_two_tiles_of_256_by_256(index: tuple[slice, slice], law: Law) -> None:
    tensor = SeededTensor(3, "w", (2048, 2048), law)
    tensor.read(slice(0, 64))  # the tables are there once for all
    tracemalloc.start()
    try:
        found = tensor.read(*index)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= found.nbytes + 2 * 256 * 256 * 4


# -- distributions ---------------------------------------------------------------------------------------------------------


def cdf(values: np.ndarray) -> np.ndarray:
    return np.array([0.5 + 0.5 * erf(value / sqrt(2)) for value in values.tolist()])


def kolmogorov(uniform: np.ndarray) -> float:
    """The probability of a distance from the even distribution as large as this one (Kolmogorov's limit)."""
    ordered = np.sort(uniform)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = max((ordered - steps[:-1]).max(), (steps[1:] - ordered).max()) * sqrt(len(ordered))
    return float(2 * sum((-1) ** (k - 1) * np.exp(-2 * k * k * distance**2) for k in range(1, 101)))


@pytest.mark.parametrize("mode", MODES)
def test_values_are_distributed_as_they_should_be(mode: Mode) -> None:
    shape = (512, 512)
    normal = SeededTensor(5, "n", shape, Normal(mean=1.0, std=3.0), mode=mode).read().reshape(-1)
    assert kolmogorov(cdf((normal - 1) / 3)) > 0.01
    uniform = SeededTensor(5, "u", shape, Uniform(low=-1.0, high=3.0), mode=mode).read().reshape(-1)
    assert kolmogorov((uniform + 1) / 4) > 0.01 and uniform.min() > -1 and uniform.max() < 3
    cut = SeededTensor(5, "t", shape, Truncated(mean=1.0, std=2.0, low=-1.0, high=2.0), mode=mode).read().reshape(-1)
    low, high = cdf(np.array([-1.0, 0.5]))
    assert kolmogorov((cdf((cut - 1) / 2) - low) / (high - low)) > 0.01 and cut.min() >= -1 and cut.max() <= 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_sixteen_million_normal_values_stand_every_test(mode: Mode) -> None:
    """Each figure in standard errors of its own; a wrong one of 1e-3 in the variance, or 1 in 1000 in the tails, would be seen."""
    n = 2**24
    values = SeededTensor(7, "a", (4096, 4096), Normal(), mode=mode).read().astype(np.float64)
    flat = values.reshape(-1)
    assert kolmogorov(cdf(flat[: 2**21])) > 0.01
    for power, mean, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((flat**power).mean() - mean) / sqrt(spread / n) < 4, power
    for far in (3.0, 4.0, 5.0):
        wanted = 2 * n * NormalDist().cdf(-far)
        assert abs((np.abs(flat) > far).sum() - wanted) < 4 * sqrt(wanted) + 1
    tiles = values.reshape(64, 64, 64, 64).transpose(0, 2, 1, 3).reshape(4096, 4096)
    between = np.corrcoef(tiles[:512])
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() * 64 < 5.5
    # The two values of one pair of picks are independent: in their squares, sizes and cubes, and in every cell of a table.
    one, two = tiles[:, :2048].reshape(-1), tiles[:, 2048:].reshape(-1)
    for f in (lambda x: x, np.square, np.abs, lambda x: x**3):
        assert abs(np.corrcoef(f(one), f(two))[0, 1]) * sqrt(len(one)) < 4
    edges = [NormalDist().inv_cdf(k / 64) for k in range(1, 64)]
    cells = np.bincount(np.searchsorted(edges, one) * 64 + np.searchsorted(edges, two), minlength=64 * 64)
    wanted = len(one) / 64**2
    chi = ((cells - wanted) ** 2 / wanted).sum()
    assert abs(chi - (64**2 - 1)) < 4 * sqrt(2 * (64**2 - 1))


@pytest.mark.slow
def test_no_two_tiles_of_half_a_billion_elements_are_alike() -> None:
    tensor = SeededTensor(7, "a", (2**15, 2**12), Normal())
    seen: set[bytes] = set()
    for at in range(0, 2**15, 64):
        tiles = tensor.read(slice(at, at + 64)).reshape(64, 64, 64).transpose(1, 0, 2).reshape(64, TILE)
        seen |= {hashlib.blake2b(tile.tobytes(), digest_size=16).digest() for tile in tiles}
    assert len(seen) == 2**27 // TILE


def test_tensors_and_seeds_are_uncorrelated() -> None:
    shape = (64, 256)
    found = [SeededTensor(seed, name, shape, Normal()).read().reshape(-1) for seed in (0, 1, 2**62) for name in ("a", "b", "a.b")]
    between = np.corrcoef(found)
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() < 4 / sqrt(64 * 256)


def test_fans_are_those_of_the_whole_tensor() -> None:
    assert kaiming((256, 64, 3, 3)) == Normal(std=sqrt(2) / 24)
    assert kaiming((256, 64, 3, 3), "uniform", "out", 1.0) == Uniform(low=-sqrt(3) / 48, high=sqrt(3) / 48)
    assert xavier((300, 100), "normal") == Normal(std=sqrt(2 / 400))
    assert kaiming((8, 100, 400), stacked=1) == kaiming((100, 400))
    with pytest.raises(SpecError, match=r"`shape` should have 2 axes at least for a fan, found \(5,\)"):
        fans((5,))
    law = kaiming((2048, 512))
    shard = SeededTensor(3, "w", (2048, 512), law).read(slice(0, 128), slice(0, 64))
    assert abs(shard.std() / sqrt(2 / 512) - 1) < 0.04  # a shard's own fan would make it 2.8 times as large


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "uniform", "low": 1.0, "high": 0.0},
        {"kind": "normal", "std": -1.0},
        {"kind": "normal", "mean": float("nan")},
        {"kind": "truncated", "low": 2.0, "high": 1.0},
        {"kind": "truncated", "low": 5.0, "high": 6.0},
        {"kind": "poisson"},
    ],
    ids=str,
)
def test_distributions_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Law).validate_python(wrong)


def test_an_unbounded_side_of_a_truncated_normal_is_taken_at_four_and_a_half() -> None:
    values = SeededTensor(3, "w", (512, 512), Truncated(std=0.02, low=-2.0, high=2.0)).read()
    assert np.abs(values).max() <= 4.5 * 0.02 + 1e-9 and abs(values.std() / 0.02 - 1) < 0.01
