"""`trunkline-child status`."""

import os
from typing import TYPE_CHECKING, Any

from child.cli.base import open_home, verb
from trunkline.console import single
from trunkline.errors import AlreadyRunning, TrunklineError
from trunkline.files import Lock
from trunkline.terminal import Result, amount, pairs, table

if TYPE_CHECKING:
    from child.home import ChildHome

app = single()


@verb(app)
def status() -> Result:
    """Who this child is, whether it runs, its tasks, and what lies in its folder. Nobody is called."""
    home = open_home()
    data = {
        "home": str(home.folder),
        "enrolled": _identity(home),
        "running": _running(home),
        "tasks": _tasks(home),
        "heads": _heads(home),
        "sets": [{"digest": digest, "size": (home.sets / digest).stat().st_size} for digest in home.held_sets()],
    }
    return Result(data, _lines(data))


def _identity(home: "ChildHome") -> dict[str, Any] | None:
    from child.identity import Identity

    if not home.identity.exists():
        return None
    identity = Identity.read(home)
    return {"name": identity.name, "master": identity.url, "superlink": identity.flower, "node_id": identity.node_id}


def _running(home: "ChildHome") -> int | None:
    """The process that uses the folder."""
    if not home.lock.exists() or not os.access(home.lock, os.W_OK):
        return None
    try:
        Lock(home.lock, "child").release()
    except AlreadyRunning:
        text = home.lock.read_text(encoding="utf-8", errors="replace").strip()
        return int(text) if text.isdigit() else -1
    return None


def _tasks(home: "ChildHome") -> list[dict[str, Any]]:
    from child.registry import Registry

    registry = Registry(home)
    rows = []
    for spec in registry.all():
        row: dict[str, Any] = {"task": spec.name, "encoder": spec.encoder, "head": spec.head, "rows": None, "problem": None}
        try:
            row["rows"] = registry.count(spec)
        except TrunklineError as error:
            row["problem"] = error.message
        rows.append(row)
    return rows


def _heads(home: "ChildHome") -> list[dict[str, Any]]:
    """Encoders that heads were trained with, and the round that they are of."""
    from child.state import PrivateStore

    rows = []
    for path in sorted(home.private.iterdir()):
        if not (path / "generations.json").exists():
            continue
        store = PrivateStore(path)
        generation = store.pending or store.committed
        if generation is not None:
            job, number, _ = generation.key
            heads = sorted(generation.notes.get("heads", {}))
            rows.append({"encoder": path.name, "job": job, "round": number, "tasks": heads})
    return rows


def _lines(data: dict[str, Any]) -> list[str]:
    who = data["enrolled"] or {}
    running = data["running"]
    about = {
        "child": who.get("name") or "not enrolled",
        "master": who.get("master"),
        "home": data["home"],
        "running": "no" if running is None else f"process {running}",
        "sets": f"{len(data['sets'])}, {amount(sum(one['size'] for one in data['sets']))}",
    }
    lines = [*pairs(about), "", *table(data["tasks"], ("task", "encoder", "head", "rows", "problem"), "no task declared")]
    return [*lines, "", *table(data["heads"], ("encoder", "job", "round", "tasks"), "no head trained yet")]
