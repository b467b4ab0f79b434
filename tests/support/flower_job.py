"""What runs in a real ServerApp process in the tests: one exchange after the other, as a file in the state folder says."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from master.link import Outgoing
from tests.support.fleet import CLOCK, initial_set, instruction, report_request
from trunkline.clock import Deadline
from trunkline.messages import Message

MAKE: dict[str, Callable[[str], Message]] = {
    "query": lambda child: instruction(),
    "train": initial_set,
    "evaluate": report_request,
}


def run(job: str, state: Path, link_to: Callable[..., Any]) -> None:
    """Ask the nodes of `nodes.json` for each kind in `kinds.json`; every exchange is a line of `answers.jsonl`."""
    began = time.time()
    nodes = json.loads((state / "nodes.json").read_text())
    link = link_to(lambda: nodes, dict)
    with (state / "answers.jsonl").open("a") as out:
        for kind in json.loads((state / "kinds.json").read_text()):
            start = time.monotonic()
            messages = {child: Outgoing(MAKE[kind](child), b"down") for child in nodes}
            answers = [
                [child, reply.kind, (attachment or b"").decode()]
                for child, reply, attachment in link.exchange(messages, Deadline(CLOCK, 60, kind))
            ]
            line = {"job": job, "began": began, "kind": kind, "seconds": time.monotonic() - start, "answers": sorted(answers)}
            print(json.dumps({**line, "torch": "torch" in sys.modules}), file=out, flush=True)


def wait(job: str, state: Path, link_to: Callable[..., Any]) -> None:
    """Say that it runs, and stay."""
    (state / "running").write_text(job)
    link = link_to(dict, dict)
    for _ in range(6000):
        link.children()
        time.sleep(0.1)


def fail(job: str, state: Path, link_to: Callable[..., Any]) -> None:
    """Fail as code fails that nobody expected to."""
    raise ZeroDivisionError("a bug in the rounds")


def note(job: str, state: Path, link_to: Callable[..., Any]) -> None:
    """Write down what it was called with."""
    (state / "noted").write_text(json.dumps({"job": job, "state": str(state), "torch": "torch" in sys.modules}))
