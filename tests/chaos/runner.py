"""One run of chaos, from an empty folder to the account."""

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from queues.connection import Client, connect
from queues.redis import RedisQueues
from tests.chaos import account as accounts
from tests.chaos import material
from tests.chaos.account import Account
from tests.chaos.schedule import KINDS, drawn
from tests.chaos.stage import Stage
from tests.support.disk import disk
from trunkline.errors import TrunklineError


@dataclass(frozen=True)
class Plan:
    """What a run is."""

    seed: int
    seconds: float = 120.0
    mode: str = "each"  # of the stream: each, together
    kinds: tuple[str, ...] = tuple(KINDS)
    producers: int = 2
    workers: int = 2  # beside the one of Celery
    keep: Path | None = None  # where its folders are copied to


@dataclass(frozen=True)
class Report:
    """What came out."""

    wrong: tuple[str, ...]  # nothing: all is well
    lines: tuple[str, ...]


def run(plan: Plan) -> Report:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        folder = Path(made)
        size = f"{int(192 + plan.seconds)}m"
        with disk(folder / "disk", size) as mounted:
            home = material.make(folder / "disk" / "stream", plan.mode)
            stage = Stage(folder, home, mounted, plan.seed, producers=plan.producers, workers=plan.workers)
            found: Account | None = None
            wrong: list[str] = []
            try:
                found = _played(plan, stage)
                wrong = found.wrong
            except AssertionError as error:
                wrong = [str(error), *_where(stage)]
            finally:
                stage.close()
            lines = _told(plan, stage, found, wrong)
            if plan.keep is not None:
                _keep(folder, plan.keep / f"seed-{plan.seed}")
        return Report(tuple(wrong), tuple(lines))


def _played(plan: Plan, stage: Stage) -> Account:
    stage.start()
    stage.run(drawn(plan.seed, plan.seconds, stage.names, plan.kinds))
    stage.until(lambda: time.monotonic() - stage.begun >= plan.seconds, plan.seconds + 60, "the end")
    stage.quiet()
    stage.end_producers()
    table = stage.home.server() or {}
    queues: list[RedisQueues] = []

    def drained() -> bool:
        if not queues:
            client = _client(table.get("redis"))
            if client is None:
                return False
            queues.append(RedisQueues(client, stage.home.spec.name, epoch=stage.home.epoch))
        return accounts.drained(queues[0])

    stage.until(drained, 120.0, "the end of what was pushed")
    found = accounts.taken(stage.folder, stage.home, queues[0], plan.producers)
    for role in ("worker", "celery", "server"):
        stage.stop(role)
    accounts.check(found, stage.home, set_back=bool(stage.done["back"]))
    queues[0]._client.close()
    return found


def _client(url: str | None) -> Client | None:
    try:
        return None if url is None else connect(url)
    except TrunklineError:
        return None


def _keep(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.sock", "zz-*", "copy-*"))


def _where(stage: Stage) -> list[str]:
    """Where everybody is, of a run that did not end."""
    found = []
    for name, actor in stage.actors.items():
        found.append(f"{name}: {'to be started' if actor.pending else f'pid {actor.pid}, code {stage.nursery.code(actor.pid)}'}")
    for log in sorted(stage.logs.glob("*.log")):
        found += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-5:]]
    return found


def _told(plan: Plan, stage: Stage, found: Account | None, wrong: Sequence[str]) -> list[str]:
    lines = [f"seed {plan.seed}, {plan.seconds:g} s, mode {plan.mode}"]
    lines.append("  done: " + ", ".join(f"{count} {what}" for what, count in sorted(stage.done.items())))
    alone = ", ".join(f"{count} {what}" for what, count in sorted(stage.ends.items()))
    lines.append(f"  ended by themselves: {alone or 'nobody'}")
    if found is not None:
        for task, counts in found.counts.items():
            lines.append(f"  {task}: {counts.pushed} pushed = {counts.applied} applied + {counts.queued} queued (the rest 0)")
        lines.append(f"  {len(found.entries)} batches applied")
        lines.append(f"  by attempt {_counted(entry.attempt for entry in found.entries)}")
        lines.append(f"  by staleness {_counted(entry.staleness for entry in found.entries)}")
        told = {name: value for name, value in found.replay.items() if name in ("error", "step", "differs", "same", "seconds")}
        lines.append(f"  replay: {told}")
    lines.append("  from a kill to the next applied batch:")
    lines += ["  " + line for line in stage.watch.told()]
    lines += [f"  WRONG: {line}" for line in wrong[:40]] or ["  all is well"]
    return lines


def _counted(values: Iterable[int]) -> dict[int, int]:
    return dict(sorted(Counter(values).items()))


def show(report: Report) -> None:
    """For people."""
    print("\n".join(report.lines), flush=True)
    sys.stdout.flush()
