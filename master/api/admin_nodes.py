"""The admin's part on children and their tasks."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from master import nodes
from master.api.answers import body_of, table
from master.api.parts import Parts
from master.pki import fingerprint, key_id
from master.records import Node
from trunkline.messages import Name, Value

RECENT_JOBS = 50
"""Jobs whose confirmations are looked through for tasks."""


class Invite(Value):
    """`POST /v1/admin/nodes/invite`."""

    name: Name | None = None
    seconds: Annotated[float, Field(gt=0, le=366 * 86_400, allow_inf_nan=False)] | None = None


def routes(parts: Parts) -> APIRouter:
    """Nodes: list, show, invite, disable, enable, revoke. Tasks: list."""
    router = APIRouter()
    ledger, limit = parts.ledger, parts.settings.max_body_bytes

    def shown(node: Node) -> dict[str, Any]:
        return _node(node, parts.actions.online())

    @router.get("/nodes")
    def all_nodes() -> list[dict[str, Any]]:
        online = parts.actions.online()
        return [_node(node, online) for node in ledger.nodes()]

    @router.post("/nodes/invite", status_code=201)
    def invite(body: Annotated[Invite, Depends(body_of(Invite, limit))]) -> dict[str, Any]:
        seconds = body.seconds or parts.settings.invite_seconds
        made = nodes.invite(
            ledger, body.name, seconds, url=parts.url, fingerprint=fingerprint(parts.ca.encode()), clock=parts.clock
        )
        return {"token": made, "name": body.name, "expires": parts.clock.now() + seconds}

    @router.get("/nodes/{name}")
    def show(name: str) -> dict[str, Any]:
        return shown(ledger.node(name))

    @router.post("/nodes/{name}/disable")
    def disable(name: str) -> dict[str, Any]:
        return shown(nodes.disable(ledger, name))

    @router.post("/nodes/{name}/enable")
    def enable(name: str) -> dict[str, Any]:
        return shown(nodes.enable(ledger, name))

    @router.post("/nodes/{name}/revoke")
    def revoke(name: str) -> dict[str, Any]:
        return shown(nodes.revoke(ledger, name, parts.actions.unregister))

    @router.get("/tasks")
    def tasks() -> list[dict[str, Any]]:
        return _tasks(parts)

    return router


def _node(node: Node, online: frozenset[int] | None) -> dict[str, Any]:
    """A node without what opens doors; `online` is null where the SuperLink does not say."""
    told = table(node)
    del told["token_hash"]
    return told | {"key": key_id(node.public_key), "online": None if online is None else node.flower_id in online}


def _tasks(parts: Parts) -> list[dict[str, Any]]:
    """What the children have told of their tasks, one line a task name. Label names are not known here."""
    children: dict[str, dict[str, Any]] = {}
    for child, task in _told(parts):
        about = {key: task[key] for key in ("head", "metric", "samples")}
        children.setdefault(task["task"], {})[child] = about
    return [
        {
            "task": task,
            "heads": sorted({about["head"] for about in told.values()}),
            "metrics": sorted({about["metric"] for about in told.values()}),
            "samples": sum(about["samples"] for about in told.values()),
            "children": told,
        }
        for task, told in sorted(children.items())
    ]


def _told(parts: Parts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task that a child told of, the latest last: in its greeting, then in the confirmations of the newest rounds."""
    for node in parts.ledger.nodes():
        yield from ((node.name, task) for task in node.tasks)
    for job in parts.ledger.jobs()[-RECENT_JOBS:]:
        reader = parts.ledger.reader(job.id)
        if (last := reader.last_round()) is None:
            continue
        for member in reader.members(last.number):
            yield from ((member.child, task) for task in member.confirmation.get("tasks", ()))
