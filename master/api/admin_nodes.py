"""The admin's part on children and their tasks."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from master import nodes
from master.api.answers import body_of, table
from master.api.parts import Parts
from master.pki import fingerprint, key_id
from master.records import Node
from trunkline.messages import Name, Value


class Invite(Value):
    """`POST /v1/admin/nodes/invite`."""

    name: Name | None = None
    seconds: Annotated[float, Field(gt=0, le=366 * 86_400, allow_inf_nan=False)] | None = None


def routes(parts: Parts) -> APIRouter:
    """Nodes: list, show, invite, disable, enable, revoke. Tasks: list."""
    router = APIRouter()
    ledger, limit = parts.ledger, parts.settings.max_body_bytes

    @router.get("/nodes")
    def all_nodes() -> list[dict[str, Any]]:
        return [_node(parts, node) for node in ledger.nodes()]

    @router.post("/nodes/invite", status_code=201)
    def invite(body: Annotated[Invite, Depends(body_of(Invite, limit))]) -> dict[str, Any]:
        seconds = body.seconds or parts.settings.invite_seconds
        made = nodes.invite(
            ledger, body.name, seconds, url=parts.url, fingerprint=fingerprint(parts.ca.encode()), clock=parts.clock
        )
        return {"token": made, "name": body.name, "expires": parts.clock.now() + seconds}

    @router.get("/nodes/{name}")
    def show(name: str) -> dict[str, Any]:
        return _node(parts, ledger.node(name))

    @router.post("/nodes/{name}/disable")
    def disable(name: str) -> dict[str, Any]:
        return _node(parts, nodes.disable(ledger, name))

    @router.post("/nodes/{name}/enable")
    def enable(name: str) -> dict[str, Any]:
        return _node(parts, nodes.enable(ledger, name))

    @router.post("/nodes/{name}/revoke")
    def revoke(name: str) -> dict[str, Any]:
        return _node(parts, nodes.revoke(ledger, name, parts.actions.unregister))

    @router.get("/tasks")
    def tasks() -> list[dict[str, Any]]:
        return _tasks(ledger.nodes())

    return router


def _node(parts: Parts, node: Node) -> dict[str, Any]:
    """A node without what opens doors."""
    told = table(node)
    del told["token_hash"]
    recently = node.seen is not None and parts.clock.now() - node.seen < parts.settings.offline_seconds
    return told | {"key": key_id(node.public_key), "online": recently and node.state == "active"}


def _tasks(found: list[Node]) -> list[dict[str, Any]]:
    """What the children have told of their tasks, one line a task name. Label names are not known here."""
    tasks: dict[str, dict[str, Any]] = {}
    for node in found:
        for task in node.tasks:
            line = tasks.setdefault(task["task"], {"task": task["task"], "heads": [], "metrics": [], "samples": 0, "children": {}})
            line["children"][node.name] = {"head": task["head"], "metric": task["metric"], "samples": task["samples"]}
            line["samples"] += task["samples"]
            line["heads"] = sorted({*line["heads"], task["head"]})
            line["metrics"] = sorted({*line["metrics"], task["metric"]})
    return [tasks[name] for name in sorted(tasks)]
