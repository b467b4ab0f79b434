"""Every key of a job's file as a flag of `job start`. A table of its own: loading the model takes longer than `--help` may."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from master.cli.base import AdminCommand
from trunkline.console import common, here
from trunkline.errors import UsageError
from trunkline.toml import read_toml, value_of

Kind = Literal["int", "float", "text", "list", "table", "bool"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, and the place of its value in the file."""

    name: str  # without the dashes
    path: str  # e.g. `training.steps`
    kind: Kind
    help: str
    usual: str = ""  # the default, as a person would write it; a test compares it with the model's

    @property
    def key(self) -> str:
        """Its name among the given options."""
        return f"job_{self.path.replace('.', '_')}"


FLAGS: tuple[Flag, ...] = (
    Flag("encoder", "encoder", "text", "The encoder to train."),
    Flag("rounds", "rounds", "int", "Rounds at most.", "24"),
    Flag("rule", "rule", "text", "How updates are fused, e.g. clip:norm=1+median; see trunkline rule list.", "mean_by_task"),
    Flag("codec", "codec", "text", "How sets travel, e.g. int8 or topk:share=0.01; see docs/codecs.md.", "float32"),
    Flag("transfer", "transfer", "text", "blob, or inline: parameter sets inside Flower's messages.", "blob"),
    Flag("task", "tasks", "list", "Only this task; may be repeated. Without it all of the encoder's type."),
    Flag("stream", "stream", "text", "A stream of the master that trains the encoder too; see docs/two_loops.md."),
    Flag("report", "report", "list", "Splits that are scored after each round: train, validation, test.", "validation"),
    Flag("final-report", "final_report", "list", "Splits that are scored after the last round.", "validation, test"),
    Flag("keep-rounds", "keep_rounds", "int", "Rounds whose recorded updates are kept.", "2"),
    Flag("seed", "seed", "int", "Of everything that is drawn.", "0"),
    Flag("steps", "training.steps", "int", "Batches a round, at each child.", "4"),
    Flag("head-steps", "training.head_steps", "int", "The first of them, which move the heads alone.", "0"),
    Flag("settle-steps", "training.settle_steps", "int", "Batches that fit the heads to what came out at last.", "0"),
    Flag("optimizer", "training.optimizer", "text", "adamw or sgd.", "adamw"),
    Flag(
        "moments", "training.moments", "text", "fresh or kept: of the shared parameters, from a child's round to its next.", "kept"
    ),
    Flag("learning-rate", "training.learning_rate", "float", "Of the shared parameters.", "0.001"),
    Flag("head-learning-rate", "training.head_learning_rate", "float", "Of the private heads.", "0.01"),
    Flag("weight-decay", "training.weight_decay", "float", "Of AdamW.", "0.01"),
    Flag("warmup", "training.warmup", "float", "Share of the whole job's steps.", "0.1"),
    Flag("decay", "training.decay", "text", "none or linear, after the warm-up.", "linear"),
    Flag("clip-norm", "training.clip_norm", "float", "Largest norm of a gradient; 0 switches it off.", "1"),
    Flag("prox", "training.prox", "float", "Strength of the FedProx term; 0 switches it off.", "0"),
    Flag("batch-size", "training.batch_size", "int", "Samples a batch; without it each task's own."),
    Flag("micro-batch", "training.micro_batch", "int", "Samples a forward pass, where memory is short."),
    Flag("max-length", "training.max_length", "int", "Tokens a sample; without it each task's own."),
    Flag("precision", "training.precision", "text", "float32, bf16 or auto.", "float32"),
    Flag("threads", "training.threads", "int", "Threads a child; without it its own setting."),
    Flag("wanted", "children.wanted", "int", "Confirmations to start a round with at once; without it every child is waited for."),
    Flag("least", "children.least", "int", "Confirmations without which a round does not start.", "1"),
    Flag(
        "least-updates", "children.least_updates", "int", "Updates without which nothing is fused; without it as many as --least."
    ),
    Flag("close-at", "children.close_at", "int", "Updates that close a round early."),
    Flag("confirm-seconds", "children.confirm_seconds", "float", "How long confirmations are waited for.", "60"),
    Flag("update-seconds", "children.update_seconds", "float", "How long updates are waited for.", "3600"),
    Flag("report-seconds", "children.report_seconds", "float", "How long reports are waited for.", "600"),
    Flag("wait-seconds", "children.wait_seconds", "float", "How long it is tried again where too few children are there.", "3600"),
    Flag("max-share", "children.max_share", "float", "Share of the weight that one child may have.", "1"),
    Flag("integers", "buffers.integers", "text", "What becomes of counters: mean, max, min or keep.", "mean"),
    Flag("booleans", "buffers.booleans", "text", "What becomes of masks: majority, any, all or keep.", "majority"),
    Flag("target", "stop.target", "table", "TASK=SCORE that is good enough (TASK may be mean); may be repeated."),
    Flag("patience", "stop.patience", "int", "Rounds without a better mean score, then stop."),
    Flag("seconds", "stop.seconds", "float", "Wall time of the job."),
    Flag("alarm-margin", "alarm.margin", "float", "Smallest loss against training alone that is an alarm.", "0.02"),
)


class JobCommand(AdminCommand):
    """`job start`: with a flag for each key of the file."""

    def more_options(self) -> list[click.Option]:
        return [*(_option(flag) for flag in FLAGS), *super().more_options()]


def _option(flag: Flag) -> click.Option:
    kinds: dict[Kind, Any] = {"int": int, "float": float, "bool": bool}
    metavar = {"int": "N", "float": "X", "list": "NAME", "table": "TASK=SCORE"}.get(flag.kind, "TEXT")
    about = f"{flag.help}  [default: {flag.usual}]" if flag.usual else flag.help
    many = {"multiple": True, "default": ()} if flag.kind in ("list", "table") else {}
    return common(f"--{flag.name}", flag.key, type=kinds.get(flag.kind, str), metavar=metavar, help=about, **many)


def asked(file: Path | None, more: list[str]) -> dict[str, Any]:
    """What a job's file, its flags and `--set KEY=VALUE` say together; the later of these count more.

    :raises SettingsError: the file is not TOML.
    :raises UsageError: a flag is not what it should be.
    """
    table = read_toml(file) if file is not None else {}
    given = here().given
    for flag in FLAGS:
        value = given.get(flag.key)
        if value is None or value == ():
            continue
        put(table, flag.path, _scores(value) if flag.kind == "table" else list(value) if flag.kind == "list" else value)
    for text in more:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"`--set` should be KEY=VALUE, such as training.steps=20, found {text!r}.")
        put(table, key.strip(), value_of(value))
    return table


def put(table: dict[str, Any], path: str, value: Any) -> None:
    """Set a value at a dotted path.

    :raises UsageError: what stands above it is no table; taking its place would hide that the file is wrong.
    """
    *above, last = path.split(".")
    for part in above:
        inner = table.get(part, {})
        if not isinstance(inner, Mapping):
            raise UsageError(f"`{part}` should be a table, since `{path}` is set too, found {str(inner)[:80]!r}.")
        table[part] = dict(inner)
        table = table[part]
    table[last] = value


def _scores(words: tuple[str, ...]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for word in words:
        task, equals, number = word.partition("=")
        try:
            scores[task] = float(number)
        except ValueError:
            equals = ""
        if not equals or not task:
            raise UsageError(f"`--target` should be TASK=SCORE, such as sentiment=0.85, found {word!r}.")
    return scores
