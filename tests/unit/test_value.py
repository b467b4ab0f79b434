"""The value study: its draws, keys, search, bootstrap, verdicts and file of results; its rounds are those of the product."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.value import compared, data, defaults, drive, rates, report, support, variants
from benchmarks.value.answers import ask
from benchmarks.value.bench import Bench, Kept
from benchmarks.value.data import ROOT, draw, sizes, truths
from benchmarks.value.intervals import MEAN, Estimate, bootstrap, scores
from benchmarks.value.results import Result, Results
from benchmarks.value.rows import read_rows
from benchmarks.value.study import (
    CELLS,
    OTHERS,
    PLACES,
    ROUNDS,
    SEEDS,
    SEVERAL,
    STEPS,
    TASKS,
    VARIANTS,
    Cell,
    Place,
    Rates,
    Run,
    Variant,
    make,
    others,
)
from benchmarks.value.support import job, refusal
from benchmarks.value.variants import Workplace, carry_out
from master.jobs import JobSpec
from tasks import encoders
from tasks.evaluate import evaluate
from tasks.heads import make_head
from tasks.specs import Config, EncoderSpec, TaskSpec
from tasks.table import open_table
from tests.support import tiny
from tests.support.world import PLAIN, World, make_world, sentiment, write_reviews
from trunkline.clock import ManualClock, SystemClock
from trunkline.errors import AlreadyRunning
from trunkline.files import Lock

RATES = Rates(1e-3, 3e-3)
BY_CHILD = {place.child: place for place in PLACES}

# -- runs and their file -----------------------------------------------------------------------------------------------


def test_a_run_has_one_key_however_its_fields_are_ordered() -> None:
    run = make("shared", CELLS[0], 3, RATES)
    shuffled = dict(sorted(asdict(run).items(), reverse=True))
    assert Run.of_table(json.loads(json.dumps(shuffled))) == run
    assert Run.of_table(shuffled).key == run.key


@pytest.mark.parametrize("change", [{"seed": 4}, {"learning_rate": 2e-3}, {"rule": "median"}, {"codec": "int8"}, {"rounds": 3}])
def test_whatever_decides_a_result_is_in_the_key(change: dict[str, object]) -> None:
    run = make("shared", CELLS[0], 3, RATES)
    assert Run.of_table(run.table() | change).key != run.key


def test_every_variant_has_the_same_steps_and_rounds_are_whole() -> None:
    for cell in CELLS:
        steps = {make(variant, cell, 0, RATES).steps for variant in VARIANTS}
        assert steps == {STEPS} and STEPS % ROUNDS == 0
        plan = job(make("shared", cell, 0, RATES)).plan(1)
        assert plan.total_steps == STEPS


def outcome(value: float, place_rows: Callable[[Place], list[int]] | None = None) -> dict[str, object]:
    children = {}
    for place in PLACES:
        count = sizes(place, 1.0)[1]
        rows = place_rows(place) if place_rows else [1] * count
        children[place.child] = {"score": value, "rows": rows} | ({"sizes": [5] * count} if place.head == "tokens" else {})
    return {"children": children, "seconds": 10.0, "bytes_up": 7}


def test_results_are_read_back_and_half_a_line_is_cut_off(tmp_path: Path) -> None:
    """Given a run and a line that a killed process began, When a study goes on, Then it has the run and its file is whole."""
    path = tmp_path / "results.jsonl"
    first, second = make("alone", CELLS[0], 0, RATES), make("pooled", CELLS[0], 0, RATES)
    Results(path).add(first, outcome(0.5))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    again = Results(path)
    assert first in again and second not in again
    again.add(second, outcome(0.75))
    assert [result.mean for result in Results(path).found.values()] == pytest.approx([0.5, 0.75])
    assert Results(path).pace() == pytest.approx(10.0 / first.cost)


def test_results_of_another_version_are_left_aside(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    run = make("alone", CELLS[0], 0, RATES)
    Results(path).add(replace(run, version=0), outcome(0.5))
    assert run not in Results(path) and not Results(path).found
    assert path.read_text().count("\n") == 1


def test_rows_are_kept_for_the_test_split_alone(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    kept = {split: results.add(make("alone", CELLS[0], 0, RATES, split), outcome(0.5)) for split in ("validation", "test")}
    assert "rows" in kept["test"].children["mail"] and "rows" not in kept["validation"].children["mail"]


def test_a_task_of_several_children_counts_once_in_the_mean() -> None:
    scored = {child: {"score": 1.0 if place.task in SEVERAL else 0.0} for child, place in BY_CHILD.items()}
    assert Result(make("alone", CELLS[0], 0, RATES), scored, 1.0, 0).mean == pytest.approx(1 / len(TASKS))


# -- draws -------------------------------------------------------------------------------------------------------------


def splits(path: Path) -> dict[str, Counter[str]]:
    found = read_rows(path)
    of: dict[str, Counter[str]] = {"train": Counter(), "validation": Counter(), "test": Counter()}
    for line, split in zip(found.lines, found.splits, strict=True):
        of[split][line] += 1
    return of


def test_a_draw_takes_its_share_of_the_training_rows_and_every_test_row(tmp_path: Path) -> None:
    drawn = draw(0.1, 0, tmp_path)
    for place in PLACES:
        mine, whole = splits(drawn.children[place.child]), splits(ROOT / place.file)
        assert mine["test"] == whole["test"] and mine["train"] <= whole["train"] and mine["validation"] <= whole["validation"]
        assert (mine["train"].total(), mine["test"].total()) == sizes(place, 0.1)


def test_what_is_merged_is_exactly_what_the_children_hold(tmp_path: Path) -> None:
    drawn = draw(0.1, 0, tmp_path)
    for task in SEVERAL:
        mine = [splits(drawn.children[place.child]) for place in PLACES if place.task == task]
        merged = splits(drawn.merged[task])
        assert all(merged[split] == sum((one[split] for one in mine), Counter()) for split in merged)


def test_a_draw_follows_from_its_seed(tmp_path: Path) -> None:
    first, again, other = draw(0.1, 0, tmp_path / "a"), draw(0.1, 0, tmp_path / "b"), draw(0.1, 1, tmp_path / "c")
    for child in BY_CHILD:
        assert first.children[child].read_bytes() == again.children[child].read_bytes()
        assert splits(first.children[child])["train"] != splits(other.children[child])["train"]


def test_all_rows_are_no_draw(tmp_path: Path) -> None:
    assert draw(1.0, 0, tmp_path).children == draw(1.0, 1, tmp_path).children


# -- the search for rates ----------------------------------------------------------------------------------------------


def search(cell: Cell, value: Callable[[Run], float]) -> tuple[dict[Variant, Rates], int]:
    known: dict[str, float] = {}

    def score(run: Run) -> float | None:
        return known.get(run.key)

    while missing := rates.wanted(cell, score):
        assert all(run.split == "validation" for run in missing)
        known.update({run.key: value(run) for run in missing})
        assert len(known) < 100, "the search ends"
    found = rates.chosen(cell, score)
    assert found is not None
    return dict(found), len(known)


@pytest.mark.parametrize("peak", rates.LADDER)
@pytest.mark.parametrize("head", rates.HEADS)
def test_the_search_climbs_to_the_peak_wherever_it_is(peak: float, head: float) -> None:
    def value(run: Run) -> float:
        return -abs(np.log(run.learning_rate / peak)) - abs(np.log(run.head_learning_rate / head))

    found, _ = search(CELLS[0], value)
    assert set(found.values()) == {Rates(peak, head)}


def test_cells_with_all_rows_take_the_rates_of_the_poor_one() -> None:
    poor, rich = (next(cell for cell in CELLS if cell.start == "scratch" and cell.poor is poor) for poor in (True, False))

    def value(run: Run) -> float:
        assert run.cell == poor, "nothing is searched for in the other"
        return -abs(np.log(run.learning_rate / 2e-3)) - abs(np.log(run.head_learning_rate / 3e-2))

    assert rates.chosen(rich, lambda run: None) is None
    assert search(rich, value) == search(poor, value)
    assert set(search(rich, value)[0].values()) == {Rates(2e-3, 3e-2)}


# -- the bootstrap -----------------------------------------------------------------------------------------------------


@settings(max_examples=5)
@given(st.integers(0, 2**31))
def test_counting_rows_is_repeating_them(seed: int) -> None:
    """The metric of weighted rows equals that of a list in which each row stands as often as it counts."""
    generator = np.random.default_rng(seed)
    for child in ("mail", "tweets", "addresses"):
        place = BY_CHILD[child]
        count = sizes(place, 1.0)[1]
        times = generator.integers(0, 3, (2, count))
        repeated = [np.repeat(np.arange(count), row) for row in times]
        if place.head == "regression":
            answers = generator.normal(0, 100, (3, count)).round()
            wanted = np.array(truths(place))
            expected = [[np.corrcoef(one[rows], wanted[rows])[0, 1] for one in answers] for rows in repeated]
            found = scores(place, answers, times.astype(float))
        else:
            each = generator.integers(1, 9, count) if place.head == "tokens" else np.ones(count, int)
            answers = generator.integers(0, each + 1, (3, count)).astype(float)
            expected = [[one[rows].sum() / each[rows].sum() for one in answers] for rows in repeated]
            found = scores(place, answers, times.astype(float), each.tolist())
        np.testing.assert_allclose(found, expected, atol=1e-9)


def rows_of(quality: float, seed: int) -> Callable[[Place], list[int]]:
    generator = np.random.default_rng(seed)

    def rows(place: Place) -> list[int]:
        count = sizes(place, 1.0)[1]
        if place.head == "regression":
            return [round(100 * (quality * value + generator.normal())) for value in truths(place)]
        return generator.binomial(5 if place.head == "tokens" else 1, quality, count).tolist()

    return rows


def way(variant: str, cell: Cell, quality: float, seeds: Sequence[int] = SEEDS) -> list[Result]:
    found = []
    for seed in seeds:
        run = make(variant, cell, seed, RATES)  # type: ignore[arg-type]
        table = outcome(quality, rows_of(quality, 1000 * seed + round(100 * quality)))
        found.append(Result(run, table["children"], 10.0, 7))  # type: ignore[arg-type]
    return found


def test_equal_ways_have_no_difference_at_all_and_a_better_one_is_clear() -> None:
    same, better = way("alone", CELLS[0], 0.6), way("shared", CELLS[0], 0.8)
    sampled = bootstrap({"one": same, "other": same, "better": better}, 200)
    for name in (*BY_CHILD, *TASKS, MEAN):
        assert sampled["one"].minus(sampled["other"], name) == Estimate(0.0, 0.0, 0.0)
    found = sampled["better"].minus(sampled["one"], MEAN)
    assert 0 < found.low < found.value < found.high and found.clear


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Two ways of equal quality, many times over: most intervals of the mean hold 0, though five seeds are few."""
    held = 0
    for number in range(10):
        seeds = range(100 * number, 100 * number + 5)
        one, two = way("alone", CELLS[0], 0.6, seeds), way("alone", CELLS[0], 0.6, [seed + 50 for seed in seeds])
        paired = [replace(second, run=first.run) for first, second in zip(one, two, strict=True)]
        sampled = bootstrap({"one": one, "other": paired}, 60, seed=number)
        held += not sampled["one"].minus(sampled["other"], MEAN).clear
    assert held >= 7


def test_ways_with_other_seeds_are_no_pair() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        bootstrap({"one": way("alone", CELLS[0], 0.6), "other": way("shared", CELLS[0], 0.6, SEEDS[:2])}, 10)


# -- verdicts, page and picture ----------------------------------------------------------------------------------------


def tune(results: Results, cell: Cell) -> None:
    """Find the rates that `way` has."""
    while missing := rates.wanted(cell, results.score):
        for run in missing:
            far = abs(np.log(run.learning_rate / RATES.encoder)) + abs(np.log(run.head_learning_rate / RATES.head))
            results.add(run, outcome(1.0 - 0.1 * far))


def study(path: Path, shared: float, pooled: float = 0.8, seeds: int = 2) -> Results:
    results = Results(path)
    for cell in CELLS:
        tune(results, cell)
        for variant, quality in (("alone", 0.6), ("shared", shared), ("pooled", pooled)):
            for result in way(variant, cell, quality, SEEDS[:seeds]):
                results.add(result.run, {"children": result.children, "seconds": 1.0, "bytes_up": 7})
    return results


@pytest.mark.parametrize(("shared", "met"), [(0.79, [True, True, True]), (0.7, [True, True, False]), (0.5, [False, False, False])])
def test_aims_are_judged_by_the_figures(tmp_path: Path, shared: float, met: list[bool]) -> None:
    figures = compared.cells(study(tmp_path / "results.jsonl", shared), 100)
    assert [aim.met for aim in compared.aims(figures)] == met


def test_the_page_says_what_was_found_and_leaves_the_rest_of_it_alone(tmp_path: Path) -> None:
    page, picture = tmp_path / "value.md", tmp_path / "plot.svg"
    page.write_text(f"before\n{report.START}\nstale words\n{report.END}\nafter\n")
    results = study(tmp_path / "results.jsonl", 0.5)
    assert report.write(results, 50, page, picture) == 6  # seeds are missing
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "stale words" not in text
    assert "**Not finished yet:** pretrained, 10% of the rows (2 of 5 seeds)" in text
    assert "It loses on sentiment" in text and all(place.child in text for place in PLACES)
    once = text, picture.read_text()
    report.write(results, 50, page, picture)
    assert (page.read_text(), picture.read_text()) == once
    assert picture.read_text().count("<circle") == 1 + len(CELLS) * (len(PLACES) + 1)


def test_what_a_child_sent_itself_is_compared_on_the_seeds_that_have_it(tmp_path: Path) -> None:
    results = study(tmp_path / "results.jsonl", 0.5)
    assert compared.cells(results, 10)[0].own is None
    run = make("shared", CELLS[0], 1, RATES)
    own = way("shared", CELLS[0], 0.75, [1])[0].children
    results.add(run, {"children": results.found[run.key].children, "seconds": 1.0, "bytes_up": 7, "own": own})
    figures = compared.cells(Results(results.path), 100)[0]
    assert (figures.seeds, figures.own_seeds) == (2, 1)
    assert figures.own_gain(way="shared").high < 0 < figures.own_gain().low


def test_other_rules_are_compared_with_the_usual_one_on_the_same_seeds(tmp_path: Path) -> None:
    results = study(tmp_path / "results.jsonl", 0.7)
    for rule, rate, quality in (("median", 1e-3, 0.5), ("mean:by=equal", 1e-3, 0.75), ("mean", 2e-3, 0.3), ("median", 2e-3, 0.3)):
        for result in way("shared", OTHERS, quality, SEEDS[:2]):  # what has another rate than was chosen does not count
            results.add(
                replace(result.run, rule=rule, learning_rate=rate), {"children": result.children, "seconds": 1.0, "bytes_up": 70}
            )
    found = compared.others(results, 100)
    assert [other.rule for other in found] == ["mean:by=equal", "median"]
    assert found[0].change.low > 0 > found[1].change.high
    assert compared.cells(results, 10)[0].scores["shared"].found[MEAN] > 0.65  # the main part is the usual rule's alone


# -- what a version has ------------------------------------------------------------------------------------------------


def test_a_rule_that_is_not_there_is_told_and_the_plain_ones_are() -> None:
    run = make("shared", OTHERS, 0, RATES)
    assert refusal(run) is None and refusal(replace(run, rule="mean_by_task", codec="bf16")) is None
    assert refusal(replace(run, rule="no_such_rule")) and refusal(replace(run, codec="no_such_codec"))
    assert len({run.key for run in others(RATES)}) == len(list(others(RATES)))


def test_a_change_of_the_defaults_is_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Steps in all stay, nothing but what is under trial changes, and a job without the usual one's seed is not told."""
    runs = defaults.wanted(CELLS[0], RATES)
    usual = make("shared", CELLS[0], 0, RATES, "validation").table()
    for run in runs:
        changed = {name for name, value in run.table().items() if value != usual[name]}
        assert changed <= {"seed", "rule", "rounds", "moments", "decay", "settle_steps"}
        assert run.rounds and (run.steps - run.settle_steps) % run.rounds == 0
    assert len({run.key for run in runs}) == len(runs)
    jobs = len(runs) // len(defaults.SEEDS)
    results = Results(tmp_path / "results.jsonl")
    for run, score in ((runs[0], 0.5), (runs[1], 0.6), (runs[jobs + 1], 0.9), (runs[jobs + 2], 0.1)):
        results.add(run, outcome(score))
    told = defaults.tried(results, CELLS[0], RATES)
    assert [one.run for one in told] == runs[:2]
    assert [one.change for one in told] == pytest.approx([0.0, 0.1])


# -- the processes -----------------------------------------------------------------------------------------------------

ECHO = """
import json, sys
rows = json.loads(open({rows!r}).read())
for line in sys.stdin:
    run = json.loads(line)
    if run["seed"] == 1:
        print(json.dumps({{"failed": "ConflictError: no"}}), flush=True)
    elif run["seed"] == 2:
        sys.exit(1)
    else:
        print(json.dumps(rows), flush=True)
"""


def driven(tmp_path: Path, seconds: float | None = 60.0) -> tuple[drive.Drive, list[str]]:
    (tmp_path / "rows.json").write_text(json.dumps(outcome(0.5)))
    (tmp_path / "worker.py").write_text(ECHO.format(rows=str(tmp_path / "rows.json")))
    said: list[str] = []

    def told(run: Run, result: Result | None, why: str) -> None:
        assert (result is None) == bool(why)
        said.append(why or "done")

    deadline = drive.until(SystemClock(), seconds)
    program = (sys.executable, str(tmp_path / "worker.py"))
    return drive.Drive(Results(tmp_path / "results.jsonl"), 1, deadline, told, tmp_path / "out", program), said


def test_runs_are_carried_out_once_and_what_failed_is_told(tmp_path: Path) -> None:
    """Given a worker that refuses seed 1, When seeds 0, 1 and 3 are asked for twice, Then each is done or told once."""
    ours, said = driven(tmp_path)
    runs = [make("alone", CELLS[0], seed, RATES) for seed in (0, 1, 3)]
    assert ours.carry_out(runs) and ours.carry_out(runs)
    assert said == ["done", "ConflictError: no", "done"]
    assert [run in Results(tmp_path / "results.jsonl") for run in runs] == [True, False, True]


def test_a_worker_that_dies_loses_its_run_and_the_study_ends(tmp_path: Path) -> None:
    ours, said = driven(tmp_path)
    runs = [make("alone", CELLS[0], seed, RATES) for seed in (0, 2, 3)]
    assert not ours.carry_out(runs)
    assert said == ["done", "its process ended"]
    assert ours.carry_out(runs) and said[2:] == ["done"]  # another process takes what is left


def test_no_run_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    ours, said = driven(tmp_path)
    clock = ManualClock()
    ours.deadline = drive.until(clock, 25.0)
    runs = [make("alone", CELLS[0], seed, RATES) for seed in (0, 3, 4)]
    ours.results.add(runs[0], outcome(0.5))  # took 10 s
    clock.sleep(16.0)
    assert not ours.carry_out(runs) and said == []


def test_two_studies_do_not_share_a_folder(tmp_path: Path) -> None:
    ours, _ = driven(tmp_path)
    held = Lock(tmp_path / "out" / "lock", "value study")
    with pytest.raises(AlreadyRunning):
        ours.carry_out([make("alone", CELLS[0], 0, RATES)])
    held.release()


# -- training is the product's -----------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    source = Config(options=tiny.OPTIONS, seed=1, tokenizer=str(tiny.tokenizer(tmp_path / "tokenizer")))
    folder = tmp_path / "made"
    encoders.create(EncoderSpec(name="value", type="text", source=source, max_length=32), folder)
    return folder


def test_the_rounds_come_to_what_the_product_comes_to(tmp_path: Path, made: Path) -> None:
    """The same job on the tests' own world gives the same parameters bit for bit; shared tables and files change nothing."""
    reviews = {name: write_reviews(tmp_path / f"{name}.csv", 60, seed) for seed, name in enumerate(("a", "b"))}
    table = {
        "encoder": "value",
        "rounds": 2,
        "rule": "mean",
        "seed": 5,
        "training": {**PLAIN, "steps": 3},
    }
    bench = Bench(tmp_path / "bench", made)
    for name, path in reviews.items():
        bench.add_child(name, sentiment(path), Kept(tmp_path / "tables", tmp_path / "encoders"))
    sent = bench.play(JobSpec.model_validate(table | {"report": [], "final_report": []}))
    world: World = make_world(tmp_path / "world")
    for name, path in reviews.items():
        world.add_child(name, sentiment(path))
    world.run(rounds=2, seed=5, training={"steps": 3})
    with bench.target() as target:
        ours = target.tensors()
    theirs = world.current()
    assert set(ours) == set(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert set(sent) == {"a", "b"} and min(sent.values()) > 0
    with bench.updates() as updates:  # both children trained on as many samples, so they count alike
        for name, fused in ours.items():
            mine, other = (updates[child].read(name, slice(0, len(fused))) for child in ("a", "b"))
            np.testing.assert_allclose(fused, (mine + other) / 2, atol=1e-6)
    heads = bench.private("a").newest().tensors
    assert any(name.startswith("sentiment/head/") for name in heads)


@pytest.mark.parametrize("head", ["single", "regression", "tokens"])
def test_answers_row_by_row_come_to_the_score_of_the_product(tmp_path: Path, made: Path, head: str) -> None:
    generator = np.random.default_rng(0)
    words = np.array(tiny.WORDS)
    lines = []
    for number in range(150):
        text = generator.choice(words, generator.integers(1, 9)).tolist()
        label = {"single": f"l{number % 3}", "regression": float(number % 7), "tokens": [f"l{len(word) % 3}" for word in text]}[
            head
        ]
        split = "train" if number < 30 else "test"
        lines.append(json.dumps({"x": text if head == "tokens" else " ".join(text), "y": label, "split": split}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    table = {"name": "t", "head": head, "data": str(tmp_path / "rows.jsonl"), "fields": ["x"], "label": "y"}
    spec, encoder = TaskSpec.model_validate(table), encoders.load(made)
    samples = open_table(spec, encoder, tmp_path / "cache", tmp_path, 1 << 20)
    torch.manual_seed(0)
    mine = make_head(spec, samples.labels, encoder.hidden, 0, scale=samples.scale)
    found = ask(encoder, mine, samples, spec, "test")
    expected = evaluate(encoder, mine, samples, spec, "test").value
    assert found.score == pytest.approx(expected, abs=1e-6) and len(found.rows) == 120
    if head != "regression":
        whole = sum(found.sizes) if found.sizes else len(found.rows)
        assert sum(found.rows) / whole == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_each_variant_answers_for_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real encoder and three of the children, two steps each: the same rows are asked in each variant."""
    few = [place for place in PLACES if place.child in ("shop-imdb", "shop-yelp", "addresses")]
    for module in (variants, data, support):
        monkeypatch.setattr(module, "PLACES", few)
    found = {}
    for variant in VARIANTS:
        run = replace(make(variant, CELLS[0], 0, RATES, "validation"), steps=2)
        found[variant] = carry_out(replace(run, rounds=1) if variant == "shared" else run, Workplace(tmp_path))
    counts = [{child: len(answers.rows) for child, answers in outcome.children.items()} for outcome in found.values()]
    assert counts[0] == counts[1] == counts[2] and set(counts[0]) == {place.child for place in few}
    assert (found["shared"].bytes_up > 0, found["alone"].bytes_up) == (True, 0)
    assert found["alone"].own is None and set(found["shared"].own or ()) == set(counts[0])
