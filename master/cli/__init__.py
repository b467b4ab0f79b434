"""`trunkline`, the admin's command line. One module a noun, loaded when it is used, so that it starts without what takes long."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from master.cli.base import AdminGroup, crash_folder
from trunkline import console
from trunkline.console import Lazy, Root

COMMANDS = {
    "serve": Lazy("master.cli.serve", "Run the master until it is told to stop."),
    "demo": Lazy("master.cli.demo", "Train one encoder over five child processes on real data, and show what was gained."),
    "node": Lazy("master.cli.node", "Children: invite, list, disable, revoke."),
    "encoder": Lazy("master.cli.encoder", "Shared encoders and their versions."),
    "task": Lazy("master.cli.task", "Tasks, as the children told of them."),
    "job": Lazy("master.cli.job", "Trainings: start, watch, stop."),
    "round": Lazy("master.cli.round", "Rounds of a job: who took part, what was refused."),
    "stream": Lazy("master.cli.stream", "Streams: samples that arrive all day train an encoder and its heads."),
    "queue": Lazy("master.cli.queue", "Queues of samples: push, look, pause."),
    "rule": Lazy("master.cli.rule", "Fuse rules: how updates become the next version."),
    "codec": Lazy("master.cli.codec", "Codecs: how parameter sets travel."),
    "worker": Lazy("master.cli.worker", "Compute gradients for a stream, until told to stop."),
    "replay": Lazy("master.cli.replay", "Compute the parameters of a stream anew from its record, and compare."),
    "doctor": Lazy("master.cli.doctor", "Look whether everything is as it should be."),
    "completion": Lazy("master.cli.completion", "What a shell needs to complete commands."),
    "version": Lazy("master.cli.version", "Versions of this installation, and of the master."),
}


class AdminRoot(AdminGroup, Root):
    """`trunkline`."""

    lazy = COMMANDS if find_spec("master.cli.demo") else {name: one for name, one in COMMANDS.items() if name != "demo"}


def app() -> Root:
    """The whole command tree; a noun is loaded when it is asked for."""
    return AdminRoot(name="trunkline", help="Train one shared encoder for many tasks whose samples stay where they are.")


def main(arguments: Sequence[str] | None = None, **_: Any) -> int:
    """Run it, and give its exit code."""
    return console.run(app(), "trunkline", arguments, crash_folder)


__all__ = ["app", "main"]
