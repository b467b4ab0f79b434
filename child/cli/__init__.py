"""`trunkline-child`, the command line of a site. Commands are loaded when they are used; only those that compute load torch."""

from collections.abc import Sequence

from child.cli.base import SiteGroup, crash_folder
from trunkline import console
from trunkline.console import Lazy, Root

COMMANDS = {
    "enrol": Lazy("child.cli.enrol", "Become a child of a master, with its invitation."),
    "task": Lazy("child.cli.task", "What this site has samples for; predictions with its own heads."),
    "run": Lazy("child.cli.run", "Serve the master until told to stop."),
    "stream": Lazy("child.cli.stream", "Streams of this site: samples that arrive all day train an encoder and its heads."),
    "queue": Lazy("child.cli.queue", "Queues of this site's streams: push, look, pause."),
    "request": Lazy("child.cli.request", "Ask the master for training."),
    "worker": Lazy("child.cli.worker", "Compute gradients for a stream of this site, until told to stop."),
    "status": Lazy("child.cli.status", "Who this child is, and what lies here."),
    "doctor": Lazy("child.cli.doctor", "Look whether everything is as it should be."),
    "alone": Lazy("child.cli.alone", "Train on this site's own samples only, to compare."),
    "reset": Lazy("child.cli.reset", "Forget heads and what was fetched."),
    "completion": Lazy("child.cli.completion", "What a shell needs to complete commands."),
    "version": Lazy("child.cli.version", "Versions of this installation."),
}


class SiteRoot(SiteGroup, Root):
    """`trunkline-child`."""

    lazy = COMMANDS


def app() -> Root:
    """The whole command tree; a command is loaded when it is asked for."""
    return SiteRoot(name="trunkline-child", help="Take part in the training of a shared encoder; samples and heads stay here.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and give its exit code."""
    return console.run(app(), "trunkline-child", arguments, crash_folder)


__all__ = ["app", "main"]
