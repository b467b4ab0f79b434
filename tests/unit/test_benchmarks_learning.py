"""The learning study: its runs, its samples, its file, what it makes of results, and one run of each kind that trains."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.learning import compared, data, plot, report, study
from benchmarks.learning.results import Results
from benchmarks.learning.study import BATCH, CELLS, RATES, SEEDS, SKEW, SMALL, STEPS, VARIANTS, Run, Variant
from benchmarks.learning.train import model, train
from queues.embedded import EmbeddedServer

GOOD: Mapping[Variant, float] = {"stream": 0.9, "mixed": 0.89, "alone": 0.7, "longer": 0.8}


def outcome(run: Run, share: float, rows: int = 100) -> dict[str, object]:
    right = [int(place < share * rows) for place in range(rows)]
    looks = [((number + 1) * SMALL // 4, number, share) for number in range(run.looks)]
    return {"curve": looks, "rows": right, "seconds": 2.0}


def filled(path: Path, good: Mapping[Variant, float] = GOOD, seeds: int = len(SEEDS)) -> Results:
    results = Results(path)
    for run in study.tuning():
        results.add(run, outcome(run, good[run.variant] - 0.01 * abs(run.rate - 1)))
    rates = study.chosen(results.scores)
    assert rates is not None
    for run in study.main_part(rates):
        if run.seed < seeds:
            results.add(run, outcome(run, good[run.variant] + 0.01 * (run.seed % 2)))
    return results


# -- what is compared --------------------------------------------------------------------------------------------------


def test_each_variant_sees_what_it_should() -> None:
    drawn = data.draw(CELLS[0].small, CELLS[0].large, 0)
    come = {variant: data.arrivals(Run(variant, 0, 0, 0), drawn) for variant in VARIANTS}
    assert come["stream"] == come["mixed"]
    tasks = {variant: Counter(task for task, _ in of) for variant, of in come.items()}
    assert tasks["stream"] == {"small": 2 * SMALL, "large": 2 * SMALL * SKEW}
    assert tasks["alone"] == {"small": 2 * SMALL}
    for variant, of in come.items():
        assert len(of) == BATCH * Run(variant, 0, 0, 0).steps
    small = {id(row) for _, row in come["alone"]}
    assert {id(row) for _, row in come["longer"]} == small
    assert {id(row) for task, row in come["stream"] if task == "small"} == small
    assert STEPS == 176


def test_a_seed_draws_its_rows_from_the_training_rows_alone() -> None:
    one = data.draw(CELLS[3].small, CELLS[3].large, 2)
    mean, deviation = data.scale(CELLS[3].large, one.large)
    assert -1 < mean < 1 < deviation < 3
    for cell in CELLS:
        one, again, other = (data.draw(cell.small, cell.large, seed) for seed in (0, 0, 1))
        assert one == again
        assert one != other
        assert {row["split"] for row in (*one.small, *one.large)} == {"train"}


def test_rates_are_those_that_do_best_in_the_mean_of_the_cells() -> None:
    scores = {run.key: 0.5 + 0.1 * (run.rate == VARIANTS.index(run.variant) % len(RATES)) for run in study.tuning()}
    assert study.chosen(scores) == {variant: place % len(RATES) for place, variant in enumerate(VARIANTS)}
    scores.popitem()
    assert study.chosen(scores) is None


def test_no_run_is_another() -> None:
    runs = [*study.tuning(), *study.main_part(dict.fromkeys(VARIANTS, 0))]
    assert len({run.key for run in runs}) == len(runs)
    assert [Run(**json.loads(json.dumps(run.table()))) for run in runs] == runs


# -- the file ----------------------------------------------------------------------------------------------------------


def test_half_a_line_of_a_killed_study_is_cut_off(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "results.jsonl", study.main_part(dict.fromkeys(VARIANTS, 0))[:2]
    Results(path).add(first, outcome(first, 0.5))
    with path.open("a") as file:
        file.write('{"run": {"var')
    results = Results(path)
    assert first in results
    results.add(second, outcome(second, 0.5))
    assert set(Results(path).found) == {first.key, second.key}
    assert results.pace() == 4.0 / (first.cost + second.cost)


def test_results_of_another_version_do_not_count(tmp_path: Path) -> None:
    run = Run("stream", 0, 0, 0, version=study.VERSION - 1)
    Results(tmp_path / "results.jsonl").add(run, outcome(run, 0.5))
    assert not Results(tmp_path / "results.jsonl").found


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_differences_and_claims(tmp_path: Path) -> None:
    found = compared.figures(filled(tmp_path / "results.jsonl"), 200)
    assert found is not None
    gain = found.minus(compared.MEAN, "stream", "alone")
    assert gain.value == pytest.approx(0.2)
    assert gain.low < 0.2 < gain.high
    assert [claim.met for claim in compared.claims(found)] == [True, True, True]
    assert [samples for samples, _ in found.curve(0, "stream")] == [(n + 1) * SMALL // 4 + n for n in range(study.LOOKS)]


def test_a_stream_that_is_worse_is_told(tmp_path: Path) -> None:
    worse: Mapping[Variant, float] = {**GOOD, "stream": 0.6}
    found = compared.figures(filled(tmp_path / "results.jsonl", worse), 200)
    assert found is not None
    assert [claim.met for claim in compared.claims(found)] == [False, False, False]


def test_the_page_and_the_picture(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "plot.svg"
    page.write_text(f"before\n{report.START}\nof last year\n{report.END}\nafter\n", encoding="utf-8")
    assert report.write(filled(tmp_path / "some.jsonl", seeds=2), 50, page, picture) == 6
    assert "**Not finished yet:** 2 of 5 seeds." in page.read_text(encoding="utf-8")
    assert report.write(filled(tmp_path / "all.jsonl"), 50, page, picture) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "of last year" not in text
    assert text.count("| ") > 20
    assert "Missed" not in text
    assert picture.read_text(encoding="utf-8").count("<polyline") == len(CELLS) * len(VARIANTS)
    assert report.write(Results(tmp_path / "none.jsonl"), 50, page, picture) == 6


def test_the_picture_keeps_to_its_edges(tmp_path: Path) -> None:
    found = compared.figures(filled(tmp_path / "results.jsonl"), 50)
    assert found is not None
    low, high = plot._range(found)
    assert low <= 70 < 91 <= high


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stream_and_a_plain_loop_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (study, data):
        monkeypatch.setattr(module, "SMALL", 16)
        monkeypatch.setattr(module, "SKEW", 2)
    monkeypatch.setattr(study, "PASSES", 1)
    monkeypatch.setattr(data, "PASSES", 1)
    monkeypatch.setattr(study, "STEPS", 6)
    encoder, server = model(tmp_path / "encoder"), EmbeddedServer(tmp_path / "redis", durable=False)
    server.start()
    try:
        found = {}
        for number, variant in enumerate((*VARIANTS, "stream")):
            folder = tmp_path / str(number)
            folder.mkdir()
            found[variant, number] = train(Run(variant, 3, 1, 1, "validation"), encoder, folder, server.url)  # type: ignore[arg-type]
    finally:
        server.stop()
    assert [len(told["curve"]) for told in found.values()] == [1] * 5
    first, *_, again = found.values()
    assert (first["curve"], first["rows"]) == (again["curve"], again["rows"])  # to the bit, whatever the batches' threads do
    assert first["curve"][-1][:2] == (16, 32)
    assert found["alone", 2]["curve"][-1][:2] == (16, 0)
