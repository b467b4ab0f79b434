"""Whether this version of the product has what a run asks for."""

from benchmarks.value.study import PLACES, Run
from master.jobs import JobSpec


def job(run: Run) -> JobSpec:
    """The job of the shared variant.

    :raises ValueError: this version has no such rule, codec or option.
    """
    assert run.rounds is not None, "a shared run has rounds"
    training = {
        "steps": (run.steps - run.settle_steps) // run.rounds,  # a child's steps are as many in all, whatever they move
        "settle_steps": run.settle_steps,
        "moments": run.moments,
        "decay": run.decay,
        "optimizer": run.optimizer,
        "learning_rate": run.learning_rate,
        "head_learning_rate": run.head_learning_rate,
        "threads": 1,
    }
    if run.optimizer == "sgd":
        training |= {"warmup": 0.0, "clip_norm": 0.0}
    table = {"encoder": "value", "rounds": run.rounds, "rule": run.rule, "codec": run.codec, "seed": run.seed, "training": training}
    children = {"wanted": len(PLACES), "least": len(PLACES)}
    quiet = {"report": [], "final_report": [], "keep_rounds": 1, "children": children}  # rows are scored afterwards, one by one
    return JobSpec.model_validate(table | quiet)


def refusal(run: Run) -> str | None:
    """Why a run cannot be carried out; None: it can."""
    if run.variant != "shared":
        return None
    try:
        job(run)
    except ValueError as error:
        lines = [line.strip() for line in str(error).splitlines() if "further information" not in line]
        return lines[-1]
    return None
