"""`trunkline-child alone`."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from child.cli.base import open_home, settings, verb
from tasks.folder import DECLARATION
from trunkline.console import here, single
from trunkline.errors import NotFound, SampleError, UsageError
from trunkline.terminal import Result, table
from trunkline.values import Decay

app = single()


@verb(app)
def alone(
    encoder: Annotated[Path, Option(metavar="FOLDER", help="As `trunkline encoder create NAME --keep FOLDER` leaves it.")],
    task: Annotated[list[str] | None, Option(help="Only this task; may be repeated.")] = None,
    steps: Annotated[int, Option(help="Batches, over all tasks: rounds x steps of the job to compare with.")] = 96,
    learning_rate: Annotated[float, Option(metavar="X", help="Of the encoder; alone, less does best.")] = 2e-4,
    head_learning_rate: Annotated[float, Option(metavar="X", help="Of the heads.")] = 3e-3,
    decay: Annotated[Decay, Option(help="Of the rates, after the warm-up.")] = "linear",
    warmup: Annotated[float, Option(metavar="X", help="Share of the steps.")] = 0.1,
    batch_size: Annotated[int | None, Option(metavar="N", help="Samples; without it each task's own.")] = None,
    max_length: Annotated[int | None, Option(metavar="N", help="Tokens; without it each task's own.")] = None,
    seed: Annotated[int | None, Option(metavar="N", help="Of everything that is drawn; without it 0.")] = None,
    every: Annotated[int | None, Option(metavar="N", help="Steps between two looks at the validation scores.")] = None,
    keep: Annotated[
        bool, Option("--keep/--no-keep", show_default=False, help="Whether the scores are kept here and told with later rounds.")
    ] = True,
) -> Result:
    """Train a copy of an encoder on this site's own samples only, and score it: what there would be without the others.

    The scores are kept, and told the master with those of later rounds, so that it can see whether sharing helps; --no-keep leaves
    what was kept before.
    """
    if not 0 <= warmup <= 1:
        raise UsageError(f"`--warmup` should be a share from 0 to 1, found {warmup:g}.")
    for flag, count in (("--steps", steps), ("--every", every)):
        if count is not None and count < 1:
            raise UsageError(f"`{flag}` should be at least 1, found {count}.")
    home = open_home()
    if not (encoder / DECLARATION).is_file():
        hint = "Make one: trunkline encoder create NAME --from MODEL --keep FOLDER --no-send."
        raise NotFound(f"`--encoder` should be the folder of an encoder, found none at {encoder}.", hint=hint)
    from child.references import References
    from child.registry import Registry
    from tasks.declared import read_spec
    from trunkline.messages import Plan
    from trunkline.settings import build

    said = {
        "steps": steps,
        "total_steps": steps,
        "warmup_steps": int(warmup * steps),
        "learning_rate": learning_rate,
        "head_learning_rate": head_learning_rate,
        "decay": decay,
        "batch_size": batch_size,
        "max_length": max_length,
        "seed": seed,
    }
    plan = build(Plan, {key: value for key, value in said.items() if value is not None}, "the plan")
    declared, registry = read_spec(encoder), Registry(home)
    kind = declared.type
    specs = registry.of_type(kind, task)
    if not specs:
        among = f" among {', '.join(task)}" if task else ""
        declared_here = ", ".join(f"{spec.name} (type {spec.encoder})" for spec in registry.all()) or "none"
        raise SampleError(
            f"a task of type {kind!r}{among} should be declared here, found {declared_here}.", hint="See trunkline-child task list."
        )
    from child import alone as training
    from child import streamed

    if fed := [spec.name for spec in specs if streamed.stream_of(spec) is not None]:
        raise SampleError(
            f"tasks should come from files to be trained alone, found {', '.join(fed)} in queues, which give each sample once.",
            hint="Name others with --task.",
        )
    console = here()

    def told(step: int, scores: list[Any]) -> None:
        console.terminal.row({"step": step, "scores": [score.table() for score in scores]})
        console.note(f"step {step}: " + ", ".join(f"{score.task} {score.metric} {score.value:.3f}" for score in scores))

    scores = training.run(home, settings(home), encoder, plan, specs, every=every, told=told)
    if keep:
        References(home, declared.name).keep(scores, {spec.name: registry.count(spec)["train"] for spec in specs}, steps)
    rows = [score.table() for score in scores]
    return Result({"steps": steps, "scores": rows}, table(rows, ("task", "split", "metric", "value", "samples")))
