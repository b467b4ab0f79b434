"""How an encoder's tasks get on, as lines and as a page."""

import re
from html.parser import HTMLParser
from typing import Any

from master.cli.conflicts import lines, matrix, span_of
from master.cli.conflicts_page import page
from master.cli.job import lines as job_lines
from master.cli.round import lines as round_lines

FOUND: dict[str, Any] = {
    "encoder": "text",
    "rounds": [{"job": "text-1", "round": 2}, {"job": "text-1", "round": 3}],
    "compared": 2,
    "tasks": [
        {"task": "spam", "samples": 20, "within": None, "kept": -0.02},
        {"task": "valence", "samples": 100, "within": 0.25, "kept": 0.5},
    ],
    "cosines": [[1.0, -0.304], [-0.304, 1.0]],
    "mixed": [],
    "gains": [
        {"task": "spam", "split": "test", "metric": "accuracy", "samples": 900, "children": 1, "alone": 0.9, "shared": 0.81}
        | {"gain": -0.09, "allowed": 0.025, "noise": 0.015, "higher_is_better": True},
        {"task": "valence", "split": "test", "metric": "mse", "samples": 50, "children": 2, "alone": 0.5, "shared": 0.49}
        | {"gain": 0.01, "allowed": 0.2, "noise": 0.12, "higher_is_better": False},
    ],
    "hurt": [{"task": "spam"}],
    "groups": [["spam"], ["valence"]],
    "advice": ["Pulling against each other: spam and valence (-0.30).", "spam loses by sharing."],
}

NOTHING = FOUND | {"rounds": [], "compared": 0, "tasks": [], "cosines": [], "gains": [], "hurt": [], "advice": ["Nothing yet."]}


def test_what_people_see() -> None:
    assert [line.rstrip() for line in lines(FOUND)] == [
        "encoder  text",
        "tasks    2",
        "rounds   text-1 2 to 3",
        "",
        "cosines of what the tasks moved the encoder by, mean over 2 rounds",
        "",
        "          spam  valence",
        "spam      1.00    -0.30",
        "valence  -0.30     1.00",
        "",
        "each task by itself",
        "",
        "TASK     SAMPLES  WITHIN  KEPT",
        "spam     20       -       -0.02",
        "valence  100      0.25    0.50",
        "",
        "against training alone, newest round",
        "",
        "TASK     SPLIT  METRIC    SAMPLES  CHILDREN  ALONE  SHARED  GAIN    ALLOWED  VERDICT",
        "spam     test   accuracy  900      1         0.900  0.810   -0.090  0.025    hurt",
        "valence  test   mse       50       2         0.500  0.490   +0.010  0.200    no clear difference",
        "",
        "advice",
        "",
        "- Pulling against each other: spam and valence (-0.30).",
        "- spam loses by sharing.",
    ]
    assert lines(NOTHING)[-1] == "- Nothing yet." and "cosines" not in " ".join(lines(NOTHING))


def test_many_tasks_with_long_names_still_fit() -> None:
    names = [f"a-task-with-a-rather-long-name-{place}" for place in range(9)]
    shown = matrix(names, [[None if one == two else -0.125 for two in names] for one in names])
    assert max(map(len, shown)) <= 110 and len({len(line) for line in shown}) == 1
    assert shown[0].split() == [str(place) for place in range(1, 10)] and shown[3].startswith("3  a-task-with")


def test_a_round_and_a_job_tell_it_in_short() -> None:
    closed = {"number": 3, "state": "closed", "version": 4, "opened": 0.0, "closed": 9.0, "reason": ""}
    told = closed | {"job": "text-1", "base": "b" * 64, "target": "c" * 64, "members": [], "updates": [], "refusals": []}
    told |= {"weights": {}, "reports": [], "gains": FOUND["gains"], "hurt": FOUND["hurt"]}
    look = {"names": ["spam", "valence"], "cosines": FOUND["cosines"]}
    shown = "\n".join(round_lines(told | {"notes": {"rule": {}, "tasks": look}}))
    assert "spam      1.00    -0.30" in shown and "-0.090  0.025    hurt" in shown
    assert "cosines" not in "\n".join(round_lines(told | {"notes": None, "gains": [], "hurt": []}))
    spec = {"rounds": 3, "rule": "mean", "codec": "float32", "training": {"steps": 5}}
    job = {"id": "text-1", "encoder": "text", "state": "finished", "reason": "", "created": 0.0, "ended": 9.0, "requested_by": None}
    job |= {"spec": spec, "rounds": [closed], "hurt": FOUND["gains"][:1]}
    line = "hurt by sharing  spam -0.090 accuracy; see trunkline encoder conflicts text"
    assert line in job_lines(job) and not any("hurt" in one for one in job_lines(job | {"hurt": []}))


def test_jobs_are_told_with_their_rounds() -> None:
    assert span_of([]) is None
    assert span_of([{"job": "a", "round": 9}]) == "a 9"


class Balanced(HTMLParser):
    """Counts what is opened and closed."""

    open: list[str]
    words: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> list[str]:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser.words


def test_the_page_says_the_same_and_needs_nothing_else() -> None:
    text = page(FOUND)
    words = read(re.sub(r"<(rect|line)([^>]*)/>", "", text))
    for said in ("spam", "valence", "-0.30", "-0.090", "hurt", "no clear difference", "spam loses by sharing.", *FOUND["advice"]):
        assert said in words
    assert not re.search(r"https?://|<script|<link|@import", text)
    assert read(page(NOTHING))[-1] == "Nothing yet."


def test_names_are_no_markup() -> None:
    text = page(FOUND | {"encoder": "<b>", "advice": ["<script>alert(1)</script>"]})
    assert "<b>" not in text and "<script>" not in text


def test_colours_run_from_against_to_together() -> None:
    shown = page(FOUND | {"cosines": [[1.0, -1.0], [0.0, None]]})
    for colour in ("rgb(29, 78, 216)", "rgb(185, 28, 28)", "rgb(255, 255, 255)"):
        assert f"background: {colour};" in shown
    assert "<td>-</td>" in shown
