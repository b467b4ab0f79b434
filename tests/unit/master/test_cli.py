"""`trunkline` without a master: what is told before anybody is called, and what is not loaded."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from pydantic import BaseModel

from master.cli import app, main
from master.cli.base import DEFAULT_STATE, where
from master.cli.encoder_spec import Wanted, spec_of
from master.cli.job_flags import FLAGS, put
from master.jobs import JobSpec
from master.settings import MasterSettings
from tasks.specs import Config, Lora, Module, Pretrained
from trunkline.errors import NotFound, SettingsError, UsageError

Capture = pytest.CaptureFixture[str]


def failed(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run it twice: the exit code and words are the same for people and for programs."""
    code = main(words)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    again = main(["--output", "json", *words])
    told = json.loads(capsys.readouterr().out)
    assert (again, told["exit_code"], told["status"], told["data"]) == (code, code, "error", None)
    assert told["error"]["message"] in err
    return code, told["error"]["code"], err


# -- what is loaded ----------------------------------------------------------------------------------------------------

SLOW = {"torch", "transformers", "sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn", "flwr", "numpy", "grpc"}
SLOWISH = SLOW | {"pydantic", "rich", "httpx", "cryptography", "ssl", "http.client", "asyncio"}


LIGHT = [["--help"], ["version"], ["job", "start", "--help"], ["encoder", "create", "--help"], ["node"]]
CALLS = [["node", "list", "--state", "nowhere"], ["job", "start", "--state", "nowhere", "--encoder", "x"]]


def test_a_light_command_loads_nothing_that_takes_long(tmp_path: Path) -> None:
    """Instead of a clock: what took 0.3 s and more were these modules."""
    lines = ["import sys", "from trunkline.start import admin"]
    for words in [*LIGHT, *CALLS]:
        lines += [f"sys.argv[1:] = {words}", "admin()", "print('loaded', *sys.modules, file=sys.stderr)"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    program = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    loaded = [set(line.split()) for line in done.stderr.splitlines() if line.startswith("loaded ")]
    assert len(loaded) == len(LIGHT) + len(CALLS) and "master.cli" in loaded[0], done.stderr
    asking = SLOW | {"pydantic", "rich", "httpx", "cryptography"}
    for words, modules in zip([*LIGHT, *CALLS], loaded, strict=True):
        assert modules & (SLOWISH if words in LIGHT else asking if words[0] == "node" else SLOW - {"numpy"}) == set(), words


def test_the_state_folder_is_that_of_the_settings_though_they_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flag before environment before file, as for every setting; and what is wrong elsewhere is told all the same."""
    monkeypatch.chdir(tmp_path)
    assert failed(capsys, "node", "list", "--state", "by-flag")[2].startswith(f"error: `{tmp_path}/by-flag/secrets")
    monkeypatch.setenv("TRUNKLINE_STATE", "by-environment")
    assert f"{tmp_path}/by-environment/secrets" in failed(capsys, "node", "list")[2]
    assert f"{tmp_path}/by-flag/secrets" in failed(capsys, "node", "list", "--state", "by-flag")[2]
    monkeypatch.setenv("TRUNKLINE_PORT", "x")
    assert failed(capsys, "node", "list")[:2] == (2, "settings")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trunkline.toml").write_text('state = "by-file"\n')
    assert f"{tmp_path}/by-file/secrets" in failed(capsys, "node", "list")[2]


def every_command() -> Iterator[tuple[str, click.Command]]:
    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from below(f"{path} {name}", inner)

    yield from below("trunkline", app())


def test_each_command_has_help_and_no_option_twice() -> None:
    commands = dict(every_command())
    assert len(commands) > 30
    for path, command in commands.items():
        assert command.help, path
        flags = [flag for parameter in command.params if isinstance(parameter, click.Option) for flag in parameter.opts]
        assert len(flags) == len(set(flags)), path
        assert {"--output", "--quiet", "--yes", "--timeout", "--no-color", "--state"} <= set(flags), path


# -- a job's flags -----------------------------------------------------------------------------------------------------


def leaves(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def test_every_key_of_a_job_has_a_flag() -> None:
    assert sorted(flag.path for flag in FLAGS) == sorted(leaves(JobSpec))


def value_at(table: Any, path: str) -> Any:
    for part in path.split("."):
        table = table[part]
    return table


def test_the_help_of_a_flag_tells_the_default_that_the_job_has() -> None:
    usual = JobSpec(encoder="a").table()
    for flag in FLAGS:
        value = None if flag.path == "encoder" else value_at(usual, flag.path)
        words = ", ".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value or "")
        assert flag.usual == (words or ("0" if value == 0 else "")), flag


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would be posted."""
    posted: list[dict[str, Any]] = []

    class Master:
        def __enter__(self) -> "Master":
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, method: str, path: str, body: str = "") -> Any:
            if method == "GET":
                return [{"task": "x"}] if path.endswith("/tasks") else {}
            posted.append(json.loads(body))
            return {"job": {"id": "x-1"}, "new": True}

    monkeypatch.setattr("master.cli.job.open_master", lambda *_: Master())
    return posted


VALUES = {"int": "3", "float": "0.25", "text": None, "list": "test", "table": "mean=0.5"}
TEXTS = {
    "codec": "bf16",
    "transfer": "inline",
    "rule": "mean_by_task",
    "buffers.integers": "max",
    "buffers.booleans": "any",
    "training.head_steps": "2",
    "training.optimizer": "sgd",
    "training.moments": "fresh",
    "training.decay": "none",
    "training.precision": "bf16",
}


def test_each_flag_arrives_where_it_belongs(started: list[dict[str, Any]]) -> None:
    words = [word for flag in FLAGS for word in (f"--{flag.name}", TEXTS.get(flag.path) or VALUES[flag.kind] or "text")]
    assert main(["job", "start", *words, "--name", "n", "--idempotency-key", "k"]) == 0
    (body,) = started
    assert (body["name"], body["key"]) == ("n", "k")
    spec = JobSpec.model_validate(body["spec"])
    for flag in FLAGS:
        value = value_at(spec.table(), flag.path)
        expected = {"int": 3, "float": 0.25, "text": TEXTS.get(flag.path, "text"), "list": ["test"], "table": {"mean": 0.5}}
        assert value == (2 if flag.path == "training.head_steps" else expected[flag.kind]), flag


def test_flags_count_more_than_the_file_and_set_more_than_both(started: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('encoder = "a"\nrounds = 5\n[training]\nsteps = 7\nwarmup = 0.2\n')
    words = ["--rounds", "6", "--steps", "8", "--task", "x", "--task", "y", "--set", "training.steps=9", "--set", 'rule="mean"']
    assert main(["job", "start", str(file), *words]) == 0
    assert started[0]["spec"] == {
        "encoder": "a",
        "rounds": 6,
        "rule": "mean",
        "tasks": ["x", "y"],
        "training": {"steps": 9, "warmup": 0.2},
    }


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_task_that_no_child_has_told_of_is_noted(started: list[dict[str, Any]], capsys: Capture, more: list[str]) -> None:
    assert main(["job", "start", "--encoder", "a", "--task", "x", "--task", "y", *more]) == 0
    said = capsys.readouterr().err
    assert "no child has told of a task 'y' yet; known: x\n" in said and "'x'" not in said and len(started) == (not more)


def test_the_lists_of_rules_and_codecs_say_what_a_job_has_by_default(capsys: Capture) -> None:
    usual = JobSpec(encoder="a")
    assert main(["rule", "list"]) == 0 and f"has {usual.rule}.\n" in capsys.readouterr().out
    assert main(["codec", "list"]) == 0 and f"has {usual.codec}.\n" in capsys.readouterr().out


def test_a_rule_and_a_codec_are_shown_with_the_values_of_their_word(capsys: Capture) -> None:
    assert main(["rule", "show", "mean:by=equal"]) == 0 and re.search(
        r"^by +equal +samples ", capsys.readouterr().out, re.MULTILINE
    )
    assert main(["codec", "show", "topk:share=0.05"]) == 0 and re.search(
        r"^share +0.05 +0.01 ", capsys.readouterr().out, re.MULTILINE
    )
    assert main(["codec", "show", "topk"]) == 0 and "VALUE" not in capsys.readouterr().out


def test_each_start_has_a_key_of_its_own_so_that_a_repeated_call_starts_one_job(started: list[dict[str, Any]]) -> None:
    assert main(["job", "start", "--encoder", "a"]) == main(["job", "start", "--encoder", "a"]) == 0
    assert len({body["key"] for body in started}) == 2 and all(body["key"] for body in started)


@pytest.mark.parametrize(
    ("words", "file", "said"),
    [
        (["--encoder", "a", "--codec", "zip"], None, "`codec` in the job should be one of float32, bf16"),
        (["--encoder", "a", "--rule", "medain"], None, "found 'medain'. Did you mean median?\n"),
        (
            ["--encoder", "a", "--rule", "fedbuff"],
            None,
            "`rule` in the job is wrong: fedbuff: `size` should be set, found nothing. For",
        ),
        (["--encoder", "a", "--rule", "median+mean"], None, "says which is which.\n"),
        (["--encoder", "a", "--set", "steps=3"], None, "`steps` in the job is not a known key; did you mean `training.steps`?"),
        (["--encoder", "a", "--set", "training.stps=3"], None, "did you mean `steps`?"),
        (["--encoder", "a", "--set", "rounds"], None, "`--set` should be KEY=VALUE"),
        (["--encoder", "a", "--target", "mean"], None, "`--target` should be TASK=SCORE"),
        (["--encoder", "a", "--wanted", "1", "--least", "2"], None, "`least` should be at most `wanted` (1), found 2"),
        (
            ["--encoder", "a", "--wanted", "1", "--least-updates", "2"],
            None,
            "`least_updates` should be at most `wanted` (1)",
        ),
        (["--encoder", "a", "--rule", "majority"], None, "`rule` in the job should be one of mean, mean_by_task"),
        (["--encoder", "a", "--weight-decay", "inf"], None, "should be a finite number, found inf"),
        (["--encoder", "a", "--clip-norm", "inf"], None, "should be a finite number, found inf"),
        (["--encoder", "a", "--target", "mean=nan"], None, "should be a finite number, found nan"),
        (["--encoder", "a", "--keep-rounds", "9" * 30], None, "`keep_rounds` in the job is wrong"),
        (["--encoder", "a", "--steps", "3"], "training = 3", "`training` should be a table, since `training.steps` is set too"),
        ([], None, "`encoder` in the job should be set, found nothing. Say --encoder NAME; see trunkline encoder list."),
        ([], 'encoder = "a"\nruonds = 3\n', "did you mean `rounds`?"),
        ([], 'encoder = "a', "should be TOML"),
        ([], b"encoder = '\xff'", "should be UTF-8"),
    ],
)
def test_a_job_that_is_wrong_is_told_before_anybody_is_called(
    capsys: Capture, tmp_path: Path, words: list[str], file: str | bytes | None, said: str
) -> None:
    if file is not None:
        (tmp_path / "job.toml").write_bytes(file if isinstance(file, bytes) else file.encode())
        words = [*words, str(tmp_path / "job.toml")]
    code, _, err = failed(capsys, "job", "start", "--state", str(tmp_path / "nobody"), *words)
    assert code == 2 and said in err


def test_a_jobs_file_that_is_not_there(capsys: Capture, tmp_path: Path) -> None:
    code, _, err = failed(capsys, "job", "start", str(tmp_path / "job.toml"))
    assert code == 2 and "should be a TOML file, found none" in err


def test_put_does_not_change_what_it_was_given() -> None:
    inner = {"steps": 1}
    table: dict[str, Any] = {"training": inner}
    put(table, "training.warmup", 0.5)
    put(table, "a.b.c", 1)
    assert table == {"training": {"steps": 1, "warmup": 0.5}, "a": {"b": {"c": 1}}} and inner == {"steps": 1}


def test_a_file_that_begins_with_a_mark(started: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('encoder = "a"', encoding="utf-8-sig")
    assert main(["job", "start", str(tmp_path / "job.toml")]) == 0 and started[0]["spec"] == {"encoder": "a"}


@pytest.mark.parametrize("name", ["", "/", "..", "../nodes", "a/b"])
def test_what_is_no_name_makes_no_other_path(name: str) -> None:
    with pytest.raises(NotFound, match=re.escape(f"found {name!r}")):
        where("jobs", name, "abort")


# -- an encoder's flags ------------------------------------------------------------------------------------------------


def test_the_three_things_an_encoder_can_start_from() -> None:
    assert spec_of(Wanted("a", pretrained="model", revision="r")).source == Pretrained(path="model", revision="r")
    config = spec_of(Wanted("a", options=("model_type=bert", "hidden_size=32"), seed=3, tokenizer="t")).source
    assert config == Config(options={"model_type": "bert", "hidden_size": 32}, seed=3, tokenizer="t")
    assert spec_of(Wanted("a", config="folder")).source == Config(path="folder")
    module = spec_of(Wanted("a", module="net.py:Net", options=("width=4",), shape="3x8x8"))
    assert module.source == Module(path="net.py:Net", options={"width": 4}) and module.shape == (3, 8, 8)


def test_an_encoder_that_every_site_starts_from_the_seed(tmp_path: Path) -> None:
    made = spec_of(Wanted("a", options=("model_type=bert",), tokenizer="t", seed=3, seeded=True)).source
    assert made == Config(options={"model_type": "bert"}, seed=3, tokenizer="t", init="seeded")
    file = tmp_path / "encoder.toml"
    file.write_text('shape = [4]\n[source]\nkind = "module"\npath = "net.py:Net"\n')
    assert spec_of(Wanted("a", file=file, seeded=True)).source == Module(path="net.py:Net", init="seeded")
    with pytest.raises(UsageError, match="`--seeded` should come with --config or --module, found weights"):
        spec_of(Wanted("a", pretrained="m", seeded=True))


def test_the_other_flags_of_an_encoder() -> None:
    wanted = Wanted("a", pretrained="m", type="text", layers=2, freeze=("embeddings",), pooling="cls", max_length=32, dropout=0.0)
    spec = spec_of(wanted)
    assert (spec.type, spec.layers, spec.freeze, spec.pooling, spec.max_length) == ("text", 2, ("embeddings",), "cls", 32)
    assert spec.dropout == 0.0 and spec.tuning == "full"
    low = spec_of(Wanted("a", pretrained="m", lora=4, lora_alpha=8.0, lora_targets=("*key",), seed=5))
    assert low.tuning == Lora(rank=4, alpha=8.0, targets=("*key",), seed=5)


def test_flags_of_an_encoder_count_more_than_its_file(tmp_path: Path) -> None:
    file = tmp_path / "encoder.toml"
    file.write_text('name = "b"\nlayers = 6\nmax_length = 64\n[source]\nkind = "pretrained"\npath = "m"\n')
    spec = spec_of(Wanted("a", file=file, layers=2))
    assert (spec.name, spec.layers, spec.max_length, spec.source) == ("a", 2, 64, Pretrained(path="m"))


@pytest.mark.parametrize(
    ("wanted", "kind", "said"),
    [
        (Wanted("a"), UsageError, "told what to start from"),
        (Wanted("a", pretrained="m", module="f.py:N"), UsageError, "--from and --module"),
        (Wanted("a", pretrained="m", lora_alpha=3.0), UsageError, "--lora RANK"),
        (Wanted("a", module="f.py:N", shape="three"), UsageError, "`--shape` should be numbers"),
        (Wanted("a", module="f.py:N"), SettingsError, "`shape` should be the shape"),
        (Wanted("a", options=("x",)), UsageError, "`--option` should be KEY=VALUE"),
        (Wanted("a", pretrained="m", pooling="sum"), SettingsError, "`pooling` in the encoder is wrong"),
        (
            Wanted("no/good", pretrained="m"),
            SettingsError,
            "`name` in the encoder is wrong: It should begin with a letter or digit",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Wanted) else str(value),
)
def test_an_encoder_that_is_declared_wrong(wanted: Wanted, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        spec_of(wanted)


def test_an_encoder_is_sent_or_kept(capsys: Capture) -> None:
    code, _, err = failed(capsys, "encoder", "create", "a", "--from", "m", "--no-send")
    assert code == 2 and "`--keep FOLDER` should be said" in err


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--format", "onnx"], 2, "`--format` should be one of hf, sentence-transformers, safetensors, found 'onnx'"),
    (["--out", "."], 5, "`--out` should be a new folder"),
])  # fmt: skip
def test_an_export_that_cannot_be_is_told_before_anything_is_fetched(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "here").touch()
    monkeypatch.chdir(tmp_path)
    found, _, err = failed(capsys, "encoder", "export", "a", "--out", "new", *words)
    assert found == code and said in err


# -- nobody there ------------------------------------------------------------------------------------------------------


def test_a_folder_on_which_no_master_was_ever_started(capsys: Capture, tmp_path: Path) -> None:
    code, kind, err = failed(capsys, "node", "list", "--state", str(tmp_path / "new"))
    assert (code, kind) == (5, "not_found") and "trunkline serve" in err
    assert not (tmp_path / "new").exists()


def test_a_master_that_does_not_run(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "admin.token").write_text("t")
    code, kind, err = failed(capsys, "job", "list", "--state", str(tmp_path))
    assert (code, kind) == (4, "unreachable") and "Start it: trunkline serve." in err


def test_a_remote_master_needs_its_token_and_its_authority(capsys: Capture, tmp_path: Path) -> None:
    assert failed(capsys, "node", "list", "--url", "https://a:1")[0] == 2
    (tmp_path / "token").write_text("t")
    words = ["node", "list", "--url", "https://a:1", "--token-file", str(tmp_path / "token")]
    assert failed(capsys, *words)[0] == 2
    assert failed(capsys, *words, "--ca", str(tmp_path / "none"))[0] == 5
    (tmp_path / "ca").write_text("no certificate")
    assert failed(capsys, *words, "--ca", str(tmp_path / "ca"))[:2] == (1, "damaged")
    words[3] = "http://a:1"
    assert failed(capsys, *words, "--ca", str(tmp_path / "ca"))[0] == 2


@pytest.mark.parametrize(
    ("text", "said"), [("prot = 1\n", "did you mean `port`?"), ("port = 0.5\n", "`port` in"), ("port =", "TOML")]
)
def test_settings_that_are_wrong_are_named(capsys: Capture, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trunkline.toml").write_text(text)
    for command in (["serve"], ["node", "list"]):
        code, kind, err = failed(capsys, *command, "--settings", str(tmp_path / "trunkline.toml"))
        assert (code, kind) == (2, "settings") and said in err


def test_a_settings_file_that_was_named_must_be_there(capsys: Capture, tmp_path: Path) -> None:
    assert failed(capsys, "serve", "--settings", str(tmp_path / "none.toml"))[0] == 2


# -- serve -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[MasterSettings]:
    """The settings that a daemon would run with."""
    seen: list[MasterSettings] = []
    daemon = ModuleType("master.daemon")
    daemon.serve = seen.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "master.daemon", daemon)
    import master

    monkeypatch.setattr(master, "daemon", daemon, raising=False)
    return seen


def test_serve_by_flag_environment_file_and_default(
    served: list[MasterSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trunkline.toml").write_text('port = 1001\nsuperlink_port = 1002\nlog_level = "debug"\n')
    monkeypatch.setenv("TRUNKLINE_SUPERLINK_PORT", "2002")
    assert main(["serve", "--log-level", "error", "--state", "here", "--name", "a.example", "--name", "b.example"]) == 0
    (found,) = served
    assert (found.port, found.superlink_port, found.log_level) == (1001, 2002, "error")
    assert (found.state, found.names) == (tmp_path / "here", ("a.example", "b.example"))


def test_the_default_folder_is_the_one_of_the_settings() -> None:
    assert MasterSettings().state == Path(DEFAULT_STATE)
