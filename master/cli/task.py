"""`trunkline task`: what the children have told of their tasks. A task is declared where its samples lie, never here."""

from typing import Any

from master.cli.base import noun, open_master, verb, where
from trunkline.terminal import Result, table

app = noun("Tasks, as the children told of them.")


@verb(app, "list")
def list_() -> Result:
    """Each task with its children and their training samples. Label names are not known to the master."""
    with open_master() as https:
        tasks: list[dict[str, Any]] = https.call("GET", where("tasks"))
    rows = [_row(task) for task in tasks]
    return Result(tasks, table(rows, ("task", "head", "metric", "samples", "children"), "none told yet"))


def _row(task: dict[str, Any]) -> dict[str, Any]:
    samples = {child: about["samples"] for child, about in task["children"].items()}
    return {**task, "head": task["heads"], "metric": task["metrics"], "children": samples}
