"""`trunkline-child task`: what this site has samples for. A task is declared here and stays here."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from child.cli.base import noun, open_home, settings, verb
from trunkline.console import here
from trunkline.errors import SampleError, UsageError
from trunkline.files import storage
from trunkline.terminal import Result, cell, pairs, table

if TYPE_CHECKING:
    from child.home import ChildHome
    from tasks.specs import TaskSpec

app = noun("What this site has samples for; predictions with its own heads.")

Name = Annotated[str, Argument(metavar="NAME", help="The task's name.")]
Many = list[str] | None


@verb(app)
def add(
    task: Annotated[str, Option("--task", metavar="NAME", help="The task's name; the master learns it.")],
    file: Annotated[
        Path | None, Argument(metavar="[FILE]", help="CSV, TSV, JSON Lines or Parquet, or a `datasets` folder.")
    ] = None,
    stream: Annotated[
        str | None, Option("--stream", metavar="NAME", help="Instead of a file: as this stream of the site declares the task.")
    ] = None,
    text: Annotated[Many, Option("--text", "--field", metavar="COLUMN", help="Input; may be repeated (pairs: two).")] = None,
    label: Annotated[str | None, Option(metavar="COLUMN", help="What is learned; none for pairs.")] = None,
    encoder: Annotated[str | None, Option(metavar="TYPE", help="The encoder type its samples suit.  [default: text]")] = None,
    head: Annotated[str, Option(help="single, multi, regression, tokens or pairs.")] = "single",
    labels: Annotated[str | None, Option(metavar="A,B,…", help="All label names in a fixed order; without it those found.")] = None,
    separator: Annotated[str | None, Option(help="Between the labels of a multi-label cell.  [default: |]")] = None,
    split: Annotated[str | None, Option(metavar="COLUMN|A,B,C", help="Column that says the split, or shares by a seed.")] = None,
    seed: Annotated[int | None, Option(help="Of a split by shares, and of --rows.")] = None,
    rows: Annotated[float | None, Option(metavar="SHARE", help="Share of the training rows that is taken.")] = None,
    batch_size: Annotated[int | None, Option(metavar="N")] = None,
    max_length: Annotated[int | None, Option(metavar="N", help="Tokens; without it the encoder's.")] = None,
    weight: Annotated[float | None, Option(help="Factor on this task's gradients.")] = None,
    metric: Annotated[str | None, Option(help="What it is judged by; without it the head's own.")] = None,
    form: Annotated[str | None, Option("--format", help="csv, tsv, jsonl, parquet; without it by the file's ending.")] = None,
    encoding: Annotated[str | None, Option(help="Of the text in the file.  [default: utf-8]")] = None,
    reader: Annotated[str | None, Option(metavar="FILE.py:NAME", help="Your own reader.")] = None,
    custom_head: Annotated[str | None, Option(metavar="FILE.py:NAME", help="Your own head.")] = None,
    replace: Annotated[bool, Option("--replace", help="Change a task that is declared already.")] = False,
) -> Result:
    """Declare a task. Its file is read once from end to end, so that what is wrong is told now.

    With --stream its samples come through a queue; all else is as the stream declares it, which learns in rounds only from then on.
    """
    if (file is None) == (stream is None):
        raise UsageError("samples should come from FILE or by `--stream`, found both or neither.")
    if stream is not None:
        return _from_stream(stream, task, replace)
    assert file is not None
    said: dict[str, Any] = {
        "name": task,
        "data": str(file.expanduser().absolute()),
        "fields": text or None,
        "label": label,
        "encoder": encoder,
        "head": head,
        "labels": None if labels is None else [part.strip() for part in labels.split(",")],
        "separator": separator,
        "seed": seed,
        "rows": rows,
        "batch_size": batch_size,
        "max_length": max_length,
        "weight": weight,
        "metric": metric,
        "format": form,
        "encoding": encoding,
        "reader": reader,
        "custom_head": custom_head,
        **_split(split),
    }
    home = open_home(make=True)
    from child.registry import Registry
    from tasks.specs import TaskSpec
    from trunkline.settings import build

    if not text:
        raise UsageError("`--text COLUMN` should name the column of the input, found none.")
    spec = build(TaskSpec, {key: value for key, value in said.items() if value is not None}, "the task")
    found = _survey(home, spec)
    Registry(home).add(spec, replace=replace)
    if spec.head == "single" and len(found["labels"]) > _MANY and all(map(_number, found["labels"])):
        count = len(found["labels"])
        here().note(f"{count} different numbers are taken for names of labels; for values: --head regression --replace")
    names: list[str] = found["labels"] or []
    for label in names:
        if label != label.strip() and label.strip() in names:
            here().note(f"{label!r} and {label.strip()!r} are two labels, and differ in blanks only")
    return Result(found, _told(found))


def _from_stream(stream: str, task: str, replace: bool) -> Result:
    home = open_home()
    from child import streamed
    from child.registry import Registry

    registry, spec = Registry(home), streamed.of_stream(home, stream, task)
    streamed.check_together([spec, *(one for one in registry.of_type(spec.encoder) if one.name != task)])
    registry.add(spec, replace=replace)
    streamed.attach(home, stream, True)
    about = {"task": task, "encoder": spec.encoder, "head": spec.head, "metric": spec.measure, "stream": stream}
    return Result(about, pairs(about))


@verb(app, "list")
def list_() -> Result:
    """The tasks of this site."""
    from child.registry import Registry

    specs = [spec.table() for spec in Registry(open_home()).all()]
    return Result(
        specs, table(specs, ("name", "encoder", "head", "fields", "label", "data"), "none; add one: trunkline-child task add")
    )


@verb(app)
def show(name: Name) -> Result:
    """One task as it is declared."""
    from child.registry import Registry

    spec = Registry(open_home()).get(name).table()
    return Result(spec, pairs(spec))


@verb(app)
def remove(name: Name) -> Result:
    """Forget a task's declaration. Its file and its head stay. A stream that feeds no task any more learns at all times again."""
    from child import streamed
    from child.registry import Registry

    home = open_home()
    registry = Registry(home)
    stream = streamed.stream_of(registry.get(name))
    registry.remove(name)
    if stream is not None and stream not in map(streamed.stream_of, registry.all()):
        streamed.attach(home, stream, False)
    return Result({"removed": name}, [f"{name} removed"])


@verb(app)
def check(name: Annotated[str | None, Argument(metavar="[NAME]", help="Without it all tasks.")] = None) -> Result:
    """Read the files of tasks again from end to end, and tell what is in them."""
    from child.registry import Registry

    home = open_home()
    registry = Registry(home)
    if name is not None:
        found = _survey(home, registry.get(name))
        return Result([found], _told(found))
    rows, lines, errors = [], [], []
    for spec in registry.all():
        try:
            rows.append(_survey(home, spec))
            lines += _told(rows[-1])
        except SampleError as error:
            errors.append(error)
            rows.append({"task": spec.name, "error": error.message})
            lines.append(f"{spec.name}  {error}")
    if errors and len(errors) == len(rows):
        return Result(rows, error=errors[0])
    return Result(rows, lines or ["none; add one: trunkline-child task add"], partial=bool(errors))


@verb(app)
def predict(
    name: Name,
    text: Annotated[
        Many, Argument(metavar="[TEXT]...", help="New samples; for a task with two fields, two texts a sample.")
    ] = None,
    file: Annotated[str | None, Option(metavar="FILE", help="JSON Lines or plain lines; - reads standard input.")] = None,
    encoder: Annotated[str | None, Option(metavar="NAME", help="Where heads were trained with several encoders.")] = None,
) -> Result:
    """What this site's own head says of new samples. Nothing leaves this machine."""
    if bool(text) == (file is not None):
        raise UsageError("samples should come as TEXT or by `--file`, found both or neither.")
    home = open_home()
    from child.registry import Registry

    spec = Registry(home).get(name)
    samples = _samples(spec, text or [], file)
    here().note("loading torch")
    from child.predict import open_predictor

    answers = open_predictor(home, settings(home), spec, encoder=encoder).answer(samples)
    rows = [{"input": sample, **answer} for sample, answer in zip(samples, answers, strict=True)]
    return Result(rows, [_said(answer, sample) for sample, answer in zip(samples, answers, strict=True)])


# -- shared ------------------------------------------------------------------------------------------------------------

_MANY = 20  # numbers that seldom name classes


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _split(text: str | None) -> dict[str, Any]:
    """`--split` is the name of a column, or three shares."""
    if text is None:
        return {}
    parts = text.split(",")
    if len(parts) == 1:
        return {"split": text}
    try:
        return {"fractions": [float(part) for part in parts]}
    except ValueError:
        raise UsageError(f"`--split` should be a column, or shares such as 0.8,0.1,0.1, found {text!r}.") from None


def _survey(home: "ChildHome", spec: "TaskSpec") -> dict[str, Any]:
    """What a task's file holds.

    :raises SampleError: something is wrong in the file, or it has nothing to train on.
    """
    from child import streamed
    from tasks import plugins
    from tasks.survey import survey

    if streamed.stream_of(spec) is not None:
        about = {"task": spec.name, "encoder": spec.encoder, "head": spec.head, "metric": spec.measure}
        return {**about, "rows": {"train": streamed.count(home, spec)}, "labels": list(spec.labels) if spec.labels else None}
    if spec.custom_head is not None:
        plugins.check_there(spec.custom_head, (home.modules,), "trunkline.heads")
    found = survey(spec, home.folder, home.cache, (home.modules,))
    if not found.counts.get("train"):
        rows = ", ".join(f"{split} {count}" for split, count in found.counts.items())
        raise SampleError(f"`{spec.data}` should have training samples for task {spec.name!r}, found {rows}.")
    least = {"single": 2, "tokens": 2, "multi": 1}.get(spec.head, 0)
    if len(found.labels) < least:
        raise SampleError(
            f"`{spec.data}`, column {spec.label!r}: should have at least {least} different labels, "
            f"found {', '.join(found.labels) or 'none'}."
        )
    labels = list(found.labels) if least else None
    about = {"task": spec.name, "encoder": spec.encoder, "head": spec.head, "metric": spec.measure}
    return {**about, "rows": dict(found.counts), "labels": labels}


def _told(found: dict[str, Any]) -> list[str]:
    rows = ", ".join(f"{split} {count}" for split, count in found["rows"].items())
    about = {**{key: found[key] for key in ("task", "encoder", "head", "metric")}, "rows": rows}
    labels = found["labels"]
    if labels is not None:
        shown = [cell(label) if label == label.strip() else repr(label) for label in labels[:12]]
        about["labels"] = f"{len(labels)}: {', '.join(shown)}{', …' if len(labels) > 12 else ''}"
    return pairs(about)


def _samples(spec: "TaskSpec", texts: list[str], file: str | None) -> list[Any]:
    """New samples in the form that `tasks.evaluate.predict` takes: a value, or a list of one a field."""
    width = len(spec.fields)
    if file is not None:
        return [_line(spec, number, line) for number, line in enumerate(_lines(file), start=1) if line.strip()]
    if len(texts) % width:
        raise UsageError(f"TEXT should be {width} a sample ({', '.join(spec.fields)}), found {len(texts)}.")
    return list(texts) if width == 1 else [texts[start : start + width] for start in range(0, len(texts), width)]


def _lines(file: str) -> list[str]:
    if file == "-":
        return sys.stdin.read().splitlines()
    path = Path(file).expanduser()
    with storage(path):
        if not path.is_file():
            raise UsageError(f"`--file` should be a file of samples, found none at {path}.")
        try:
            return path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise SampleError(f"`{path}` should be UTF-8, found other bytes at {error.start}.") from None


def _line(spec: "TaskSpec", number: int, line: str) -> Any:
    """A JSON object with the task's fields, another JSON value, or plain text."""
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict):
        return line if isinstance(value, int | float | bool) or value is None else value
    missing = [name for name in spec.fields if name not in value]
    if missing:
        raise SampleError(f"line {number} should have the fields {', '.join(spec.fields)}, found none for {', '.join(missing)}.")
    found = [value[name] for name in spec.fields]
    return found[0] if len(found) == 1 else found


def _said(answer: dict[str, Any], sample: Any) -> str:
    said = "  ".join(cell(value) for key, value in answer.items() if key != "probabilities")
    return f"{said}  {cell(sample)[:100]}"
