"""`trunkline node`: the children."""

from typing import Annotated, Any

from typer import Argument, Option

from master.cli.base import noun, open_master, verb, where
from trunkline.console import here
from trunkline.errors import UsageError
from trunkline.terminal import Result, amount, moment, pairs, table

app = noun("Children: invite, list, disable, revoke.")

Child = Annotated[str, Argument(metavar="NAME", help="The child's name.")]


@verb(app, "list")
def list_() -> Result:
    """All children that ever enrolled."""
    with open_master() as https:
        nodes: list[dict[str, Any]] = https.call("GET", where("nodes"))
    rows = [{**node, "seen": moment(node["seen"]), "tasks": [task["task"] for task in node["tasks"]]} for node in nodes]
    nothing = "none; invite one with: trunkline node invite NAME"
    return Result(nodes, table(rows, ("name", "state", "online", "seen", "tasks"), nothing))


@verb(app)
def show(name: Child) -> Result:
    """One child: its state, tasks and machine."""
    with open_master() as https:
        node: dict[str, Any] = https.call("GET", where("nodes", name))
    return Result(node, _lines(node))


@verb(app)
def invite(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="The child's name; without it the child may choose.")] = None,
    days: Annotated[float | None, Option(help="How long it is good for.  [default: as set, a week]")] = None,
) -> Result:
    """Print an invitation: one line, good for one `trunkline-child enrol`. It is the approval: who enrols with it is in at once."""
    import json

    if days is not None and not 0 < days <= 3_660:
        raise UsageError(f"`--days` should be more than 0 and at most 3660, found {days:g}.")
    body = json.dumps({"name": name, "seconds": None if days is None else days * 86_400})
    with open_master() as https:
        made: dict[str, Any] = https.call("POST", where("nodes", "invite"), body, retry=False)
    here().note(f"good for one enrolment until {moment(made['expires'])}: trunkline-child enrol --token …")
    return Result(made, [made["token"]])


@verb(app)
def disable(name: Child) -> Result:
    """Keep a child out until it is enabled."""
    return _move(name, "disable")


@verb(app)
def enable(name: Child) -> Result:
    """Let a disabled child in again."""
    return _move(name, "enable")


@verb(app)
def revoke(name: Child) -> Result:
    """Put a child out for ever; its name is not used again."""
    here().confirm(f"Put child {name!r} out for ever?")
    return _move(name, "revoke")


def _move(name: str, action: str) -> Result:
    with open_master() as https:
        node: dict[str, Any] = https.call("POST", where("nodes", name, action))
    return Result(node, [f"{node['name']}  {node['state']}"])


def _lines(node: dict[str, Any]) -> list[str]:
    machine = node["machine"]
    about = {
        "name": node["name"],
        "state": node["state"],
        "online": node["online"],
        "seen": moment(node["seen"]),
        "enrolled": moment(node["created"]),
        "node id": node["flower_id"],
        "key": node["key"],
        "wire": node["speaks"],
    }
    if machine:
        about |= {"processors": machine["cpus"], "memory": amount(machine["memory"]), "gpus": machine["gpus"]}
        about |= {"python": machine["python"], "torch": machine["torch"], "trunkline": machine["trunkline"]}
    return [*pairs(about), "", *table(node["tasks"], ("task", "head", "metric", "samples"), "no tasks told yet")]
