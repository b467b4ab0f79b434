"""Which stream a command means."""

from pathlib import Path

from queues.stream.home import StreamHome
from trunkline.errors import NotFound, UsageError


def choose(streams: Path, name: str | None) -> StreamHome:
    """The folder of a stream of this name; without a name, of the only one there is.

    :param streams: the folder that holds a folder for each.
    :raises NotFound: there is none of this name, or none at all.
    :raises UsageError: there are several, and none was named.
    """
    names = sorted(path.parent.name for path in streams.glob("[!.]*/stream.json"))
    if name is not None and name not in names:
        raise NotFound(f"`STREAM` should be one of {', '.join(names) or 'none yet'}, found {name!r}.")
    if not names:
        raise NotFound(f"`{streams}` should hold a stream, found none.", hint="Create one first.")
    if name is None and len(names) > 1:
        raise UsageError(f"`STREAM` should be said where there are several, found {', '.join(names)}.")
    return StreamHome(streams / (name or names[0]))
