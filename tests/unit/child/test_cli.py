"""`trunkline-child` without a master and without torch: tasks, what is wrong with their files, and what is asked before."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from child.cli import app, main
from child.home import ChildHome
from child.settings import ChildSettings
from trunkline.files import Lock

Capture = pytest.CaptureFixture[str]

REVIEWS = "text,label,split\n" + "".join(
    f'"this was {word} number {number}",{word},{split}\n'
    for number, (word, split) in enumerate([("good", "train"), ("bad", "train"), ("good", "validation"), ("bad", "test")] * 3)
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRUNKLINE_CHILD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def done(capsys: Capture, *words: str) -> Any:
    """The data that a command answers."""
    code = main(["--output", "json", *words])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["status"]) == (0, "ok"), told
    return told["data"]


def failed(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run it twice: the exit code and words are the same for people and for programs."""
    code = main(words)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    again = main(["--output", "json", *words])
    told = json.loads(capsys.readouterr().out)
    assert (again, told["exit_code"], told["status"]) == (code, code, "error")
    return code, told["error"]["code"], err


def add(file: str, *words: str) -> list[str]:
    return ["task", "add", file, "--task", "sentiment", "--text", "text", "--label", "label", *words]


# -- what is loaded ----------------------------------------------------------------------------------------------------

HEAVY = {"torch", "transformers", "flwr", "sqlalchemy", "fastapi", "pyarrow"}
SLOWISH = {"pydantic", "numpy", "ssl", "rich"}


LIGHT = [["--help"], ["task", "add", "--help"], ["version"]]
READING = [add("reviews.csv"), ["task", "list"], ["status"]]


def test_torch_is_loaded_only_by_what_computes(home: Path) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    lines = ["import sys", "from trunkline.start import agent"]
    for words in [*LIGHT, *READING]:
        lines += [f"sys.argv[1:] = {words}", "print('code', agent(), 'loaded', *sys.modules, file=sys.stderr)"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    program = [sys.executable, "-c", "\n".join(lines)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment)
    loaded = [set(line.split()) for line in run.stderr.splitlines() if line.startswith("code 0 loaded ")]
    assert len(loaded) == len(LIGHT) + len(READING) and "child.cli" in loaded[0], run.stderr
    for words, modules in zip([*LIGHT, *READING], loaded, strict=True):
        assert modules & (HEAVY | (SLOWISH if words in LIGHT else set())) == set(), words


def test_each_command_has_help_and_no_option_twice() -> None:
    root = app()
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None and command.help, name
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        for one in inner:
            flags = [flag for parameter in one.params if isinstance(parameter, click.Option) for flag in parameter.opts]
            assert len(flags) == len(set(flags)) and {"--home", "--output"} <= set(flags), one.name


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_is_declared_listed_shown_checked_and_removed(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    found = done(capsys, *add("reviews.csv"))
    assert found["rows"] == {"train": 6, "validation": 3, "test": 3} and found["labels"] == ["bad", "good"]
    (listed,) = done(capsys, "task", "list")
    assert listed["data"] == str(home.parent / "reviews.csv"), "so that it is found from every folder"
    assert done(capsys, "task", "show", "sentiment") == listed
    assert done(capsys, "task", "check") == done(capsys, "task", "check", "sentiment") == [found]
    done(capsys, "task", "remove", "sentiment")
    assert done(capsys, "task", "list") == []
    assert Path("reviews.csv").exists()


def test_what_was_said_is_what_is_declared(home: Path, capsys: Capture) -> None:
    Path("mail.data").write_text("subject\tbody\tkind\nhello\tyou win\tspam;long\nre: tea\tat five\tham\n", encoding="utf-16")
    words = [
        "task",
        "add",
        "mail.data",
        "--task",
        "mail",
        "--text",
        "subject",
        "--text",
        "body",
        "--label",
        "kind",
        "--head",
        "multi",
    ]
    words += [
        "--labels",
        "ham, spam,long",
        "--separator",
        ";",
        "--split",
        "1,0,0",
        "--seed",
        "4",
        "--rows",
        "0.5",
        "--encoder",
        "mini",
    ]
    words += ["--batch-size", "2", "--max-length", "16", "--weight", "2", "--metric", "accuracy", "--format", "tsv"]
    found = done(capsys, *words, "--encoding", "utf-16")
    assert (found["metric"], found["rows"], found["labels"]) == (
        "accuracy",
        {"train": 1, "validation": 0, "test": 0},
        ["ham", "spam", "long"],
    )
    declared = done(capsys, "task", "show", "mail")
    assert declared == {
        "name": "mail",
        "encoder": "mini",
        "head": "multi",
        "data": str(home.parent / "mail.data"),
        "format": "tsv",
        "encoding": "utf-16",
        "fields": ["subject", "body"],
        "label": "kind",
        "labels": ["ham", "spam", "long"],
        "separator": ";",
        "fractions": [1.0, 0.0, 0.0],
        "seed": 4,
        "rows": 0.5,
        "max_length": 16,
        "batch_size": 2,
        "weight": 2.0,
        "metric": "accuracy",
    }


def test_labels_that_differ_in_blanks_only_are_told(home: Path, capsys: Capture) -> None:
    Path("blanks.csv").write_text("text,label,split\na,yes,train\nb,yes ,train\n")
    assert main([*add("blanks.csv")]) == 0
    out, err = capsys.readouterr()
    assert "2: yes, 'yes '" in out and "'yes ' and 'yes' are two labels" in err


def test_the_same_again_is_no_conflict_another_is(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    done(capsys, *add("reviews.csv"))
    done(capsys, *add("reviews.csv"))
    code, kind, err = failed(capsys, *add("reviews.csv", "--batch-size", "8"))
    assert (code, kind) == (5, "conflict") and "--replace" in err
    done(capsys, *add("reviews.csv", "--batch-size", "8", "--replace"))
    assert done(capsys, "task", "show", "sentiment")["batch_size"] == 8


BAD_FILES: dict[str, tuple[str | bytes, list[str], list[str]]] = {
    "renamed column": ("txt,label\na,x\n", [], ["should have a column 'text'", "found txt, label", "Did you mean 'txt'?"]),
    "missing label column": ("text,lab\na,x\n", [], ["should have a column 'label'"]),
    "a label late in the file": (REVIEWS + "more,ugly,train\n", ["--labels", "good,bad"], ["line 14", "good, bad", "found 'ugly'"]),
    "one label only": ("text,label,split\na,x,train\nb,x,train\n", [], ["at least 2 different labels, found x"]),
    "empty file": ("", [], ["found an empty file"]),
    "no row": ("text,label\n", [], ["found no row"]),
    "wrong encoding": ("text,label\ngood,x\ncaf\xe9,y\n".encode("latin-1"), [], ["should be utf-8", "line 3", "cp1252"]),
    "no such encoding": ("text,label\na,x\n", ["--encoding", "utf-99"], ["`encoding` should be the name of an encoding"]),
    "a label that is no number": ("text,label\na,1\nb,two\n", ["--head", "regression"], ["line 3", "finite number, found 'two'"]),
    "no label in a row": ("text,label\na,\n", [], ["line 2", "should have a label, found none"]),
    "no training samples": ("text,label,split\na,x,test\nb,y,test\n", [], ["training samples", "train 0", "test 2"]),
    "no such split": ("text,label,split\na,x,later\n", [], ["train, validation or test, found 'later'"]),
    "no such metric": (REVIEWS, ["--metric", "bleu"], ["`metric` should be one of accuracy, f1"]),
    "no such head": (REVIEWS, ["--head", "dual"], ["`head` in the task is wrong"]),
    "a head of one's own that is nowhere": (
        REVIEWS,
        ["--custom-head", "gone.py:Head"],
        ["`gone.py` should be a file with your code"],
    ),
    "one column for both": (REVIEWS, ["--text", "label"], ["`fields` and `label` should be different columns"]),
    "shares that do not sum to 1": (REVIEWS, ["--split", "0.5,0.1,0.1"], ["should sum to 1"]),
    "shares that are none": (REVIEWS, ["--split", "a,b,c"], ["`--split` should be a column, or shares"]),
    "no such file": (b"", [], ["found an empty file"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_is_wrong_with_a_file_is_told_when_the_task_is_declared(home: Path, capsys: Capture, name: str) -> None:
    content, words, said = BAD_FILES[name]
    Path("reviews.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    code, _, err = failed(capsys, *add("reviews.csv", *words))
    assert code == 2
    for part in said:
        assert part in err
    assert not list((home / "tasks").glob("*")), "nothing was declared"


def test_a_file_that_is_not_there_or_of_no_known_kind(home: Path, capsys: Capture) -> None:
    assert failed(capsys, *add("none.csv"))[:2] == (2, "sample")
    Path("reviews.doc").write_text(REVIEWS)
    code, kind, err = failed(capsys, *add("reviews.doc"))
    assert (code, kind) == (2, "spec") and "--format" in err.replace("`format`", "--format")


def test_a_task_without_input_or_with_a_bad_name(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    assert failed(capsys, "task", "add", "reviews.csv", "--task", "x", "--label", "label")[0] == 2
    code, _, err = failed(capsys, "task", "add", "reviews.csv", "--task", "../x", "--text", "text", "--label", "label")
    assert code == 2 and "`name` in the task is wrong" in err


def test_several_tasks_are_checked_one_by_one(home: Path, capsys: Capture) -> None:
    Path("a.csv").write_text(REVIEWS)
    Path("b.csv").write_text(REVIEWS)
    done(capsys, "task", "add", "a.csv", "--task", "a", "--text", "text", "--label", "label")
    done(capsys, "task", "add", "b.csv", "--task", "b", "--text", "text", "--label", "label")
    Path("b.csv").write_text("text,label\n")
    assert main(["task", "check", "--output", "json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "partial" and ["error" in row for row in told["data"]] == [False, True]
    Path("a.csv").unlink()
    assert main(["task", "check", "--output", "json"]) == 2


def test_a_task_that_is_not_declared(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    done(capsys, *add("reviews.csv"))
    (ChildHome(home).tasks / "sentiment.toml").rename(home / "x.toml")  # a task's file, but not among the tasks
    for name in ("x", "../x", str(home / "x"), ""):
        for words in (["show", name], ["remove", name], ["check", name], ["predict", name, "text"]):
            code, kind, err = failed(capsys, "task", *words)
            assert (code, kind) == (5, "not_found") and f"task {name!r} should be declared here" in err
    assert (home / "x.toml").exists()


def test_a_tasks_file_that_was_changed_by_hand(home: Path, capsys: Capture) -> None:
    (ChildHome(home).tasks / "x.toml").write_text('name = "x"\nhaed = "single"\n')
    code, _, err = failed(capsys, "task", "list")
    assert code == 2 and "did you mean `head`?" in err


# -- predictions: what is asked before torch is loaded -----------------------------------------------------------------


def test_samples_come_one_way(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    done(capsys, *add("reviews.csv"))
    assert failed(capsys, "task", "predict", "sentiment")[0] == 2
    assert failed(capsys, "task", "predict", "sentiment", "text", "--file", "x")[0] == 2
    code, _, err = failed(capsys, "task", "predict", "sentiment", "--file", "none.jsonl")
    assert code == 2 and "found none at none.jsonl" in err


@pytest.mark.parametrize(
    ("fields", "lines", "expected"),
    [
        (["text"], ["plain words", "3", "", "[1"], ["plain words", "3", "[1"]),
        (["text"], ['"quoted"', '{"text": "in a field", "more": 1}'], ["quoted", "in a field"]),
        (["a", "b"], ['{"a": "x", "b": "y"}', '["x", "y"]'], [["x", "y"], ["x", "y"]]),
        (["f"], ["[1.0, 2.0]"], [[1.0, 2.0]]),
    ],
)  # fmt: skip
def test_lines_of_samples(home: Path, fields: list[str], lines: list[str], expected: list[Any]) -> None:
    from child.cli.task import _samples
    from tasks.specs import TaskSpec

    Path("new.jsonl").write_text("\n".join(lines))
    spec = TaskSpec.model_validate({"name": "x", "head": "single", "data": "d", "fields": fields, "label": "l"})
    assert _samples(spec, [], "new.jsonl") == expected


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["status"], ["run"], ["task", "list"], ["request", "--type", "text"], ["reset", "--yes"]])
def test_a_mistyped_folder_makes_no_new_one(tmp_path: Path, capsys: Capture, words: list[str]) -> None:
    code, kind, err = failed(capsys, *words, "--home", str(tmp_path / "hoem"))
    assert (code, kind) == (5, "not_found") and "hoem" in err
    assert not (tmp_path / "hoem").exists()


@pytest.mark.parametrize("words", [["run"], ["request", "--type", "text"]])
def test_nobody_enrolled_here(home: Path, capsys: Capture, words: list[str]) -> None:
    ChildHome(home)
    code, kind, err = failed(capsys, *words)
    assert (code, kind) == (5, "not_found") and "trunkline-child enrol" in err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    Path(tmp_path / "reviews.csv").write_text(REVIEWS)
    code, kind, err = failed(capsys, *add(str(tmp_path / "reviews.csv"), "--home", str(tmp_path / "file" / "home")))
    assert (code, kind) == (1, "storage") and "should be writable" in err


def test_status_of_a_new_folder(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    done(capsys, *add("reviews.csv"))
    told = done(capsys, "status")
    assert told["enrolled"] is None and told["running"] is None and told["heads"] == []
    assert told["tasks"][0]["rows"] == {"train": 6, "validation": 3, "test": 3}
    Path("reviews.csv").unlink()
    assert "found none" in done(capsys, "status")["tasks"][0]["problem"]
    lock = Lock(home / "lock", "child")
    assert done(capsys, "status")["running"] == os.getpid()
    lock.release()
    assert main(["status"]) == 0 and "not enrolled" in capsys.readouterr().out


def test_reset_forgets_heads_and_keeps_tasks(home: Path, capsys: Capture) -> None:
    Path("reviews.csv").write_text(REVIEWS)
    done(capsys, *add("reviews.csv"))
    folder = ChildHome(home)
    for path in (
        folder.private / "mini" / "gen-1",
        folder.private / "other" / "gen-1",
        folder.sets / "a",
        folder.identity,
        folder.key,
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    assert failed(capsys, "reset")[0] == 2, "nobody was asked"
    assert done(capsys, "reset", "--yes", "--encoder", "mini")["forgotten"] == ["private/mini"]
    assert (folder.private / "other").exists() and (folder.sets / "a").exists()
    for name in ("", ".", "..", "../sets", str(folder.sets), "another"):  # none of these may reach what lies beside
        code, kind, err = failed(capsys, "reset", "--yes", "--encoder", name)
        assert (code, kind) == (5, "not_found") and "(other), found" in err
        assert (folder.private / "other" / "gen-1").exists() and (folder.sets / "a").exists()
    lock = Lock(folder.lock, "child")
    assert failed(capsys, "reset", "--yes")[:2] == (5, "already_running"), "not under a running child"
    lock.release()
    done(capsys, "reset", "--yes")
    assert not folder.private.exists() and not folder.sets.exists()
    assert (
        folder.identity.exists() and folder.key.exists() and [one["name"] for one in done(capsys, "task", "list")] == ["sentiment"]
    )
    done(capsys, "reset", "--yes", "--identity")
    assert not folder.identity.exists() and not folder.key.exists()


# -- enrolment ---------------------------------------------------------------------------------------------------------


def test_an_invitation_comes_one_way_and_is_one(home: Path, capsys: Capture) -> None:
    assert "found none" in failed(capsys, "enrol")[2]
    assert failed(capsys, "enrol", "--token", "a", "--token-file", "b")[0] == 2
    assert failed(capsys, "enrol", "--token-file", "none")[0] == 2
    code, _, err = failed(capsys, "enrol", "--token", "abc")
    assert code == 2 and "`trunkline node invite`" in err
    assert not (home / "key.pem").exists() and not (home / "identity.json").exists()


# -- run ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[ChildSettings]:
    """The settings that an agent would run with, in a folder that somebody enrolled."""
    seen: list[ChildSettings] = []
    agent = ModuleType("child.agent")
    agent.run = lambda home, settings, again: seen.extend([settings, again()])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "child.agent", agent)
    import child

    monkeypatch.setattr(child, "agent", agent, raising=False)
    ChildHome(home).identity.write_text("{}")
    return seen


def test_run_by_flag_environment_file_and_default(
    ran: list[ChildSettings], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (home / "child.toml").write_text('threads = 1\ndevice = "cuda"\nkeep_sets = 5\n')
    monkeypatch.setenv("TRUNKLINE_CHILD_DEVICE", "cpu")
    done(capsys, "run", "--threads", "2")
    found, again = ran
    assert again == found, "what SIGHUP reads counts the flags too"
    assert (found.threads, found.device, found.keep_sets, found.log_level) == (2, "cpu", 5, "info")
    assert (home / "logs" / "agent.log").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thread = 1", "did you mean `threads`?"),
        ("[policy]\nhour = 1", "did you mean `hours`?"),
        ("poll = -1", "`poll` in"),
        ("x", "TOML"),
    ],
)
def test_settings_that_are_wrong_are_named_and_nothing_starts(
    ran: list[ChildSettings], home: Path, capsys: Capture, text: str, said: str
) -> None:
    (home / "child.toml").write_text(text)
    code, kind, err = failed(capsys, "run")
    assert (code, kind) == (2, "settings") and said in err and ran == []
