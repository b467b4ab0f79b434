"""The pages that tell a job's defaults tell those that it has."""

import inspect
from pathlib import Path

import click
import pytest

from child.cli.alone import alone
from master.demo.plan import DemoPlan
from master.jobs import JobSpec
from master.settings import MasterSettings
from tasks.specs import Config, EncoderSpec, Lora
from tests.docs import commands

ROOT = Path(__file__).parent.parent.parent
USUAL = JobSpec(encoder="a")
TRAINING = USUAL.training


def rate(value: float) -> str:
    """As people write it: 1e-3."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


@pytest.mark.parametrize("page", ["README.md", "docs/rounds.md"])
def test_rounds_steps_and_rates_are_those_of_a_job(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"{USUAL.rounds} rounds of {TRAINING.steps} steps" in text and f"`{USUAL.rule}`" in text
    assert f"{rate(TRAINING.learning_rate)} (encoder) and {rate(TRAINING.head_learning_rate)} (heads)" in text
    assert TRAINING.decay == "linear" and TRAINING.moments == "kept" and TRAINING.warmup == 0.1


def test_a_reference_has_as_many_steps_as_a_job() -> None:
    assert inspect.signature(alone).parameters["steps"].default == USUAL.rounds * TRAINING.steps
    text = " ".join((ROOT / "docs/transfer.md").read_text(encoding="utf-8").split())
    assert f"rounds × steps; {USUAL.rounds * TRAINING.steps} by default" in text


ENCODER = EncoderSpec(name="a", source=Config(options={"model_type": "bert"}))
MASTER = MasterSettings()
TOLD = {
    "trunkline encoder create": {
        "--type": ENCODER.type,
        "--seed": Config().seed,
        "--pooling": ENCODER.pooling,
        "--max-length": ENCODER.max_length,
        "--lora-alpha": f"{Lora().alpha:g}",
        "--lora-target": ", ".join(Lora().targets),
    },
    "trunkline serve": {
        "--host": MASTER.host,
        "--port": MASTER.port,
        "--superlink-port": MASTER.superlink_port,
        "--log-level": MASTER.log_level,
    },
    "trunkline demo": {"--rounds": DemoPlan().rounds, "--steps": DemoPlan().steps},
}


@pytest.mark.parametrize(("path", "flag"), [(path, flag) for path, flags in TOLD.items() for flag in flags])
def test_a_default_that_stands_elsewhere_is_told_by_the_help(path: str, flag: str) -> None:
    command = dict(commands.every("trunkline"))[path]
    option = next(one for one in command.params if flag in one.opts)
    assert isinstance(option, click.Option) and str(option.help).endswith(f"  [default: {TOLD[path][flag]}]")


def test_the_rule_and_codec_of_a_job_that_names_none_are_told() -> None:
    assert f"`{USUAL.rule}`**, the default" in (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert f"one that names none has `{USUAL.codec}`" in (ROOT / "docs/codecs.md").read_text(encoding="utf-8")
