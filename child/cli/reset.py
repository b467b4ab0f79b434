"""`trunkline-child reset`."""

import shutil
from typing import TYPE_CHECKING, Annotated

from typer import Option

from child.cli.base import open_home, verb
from trunkline.console import here, single
from trunkline.errors import NotFound
from trunkline.files import Lock, storage
from trunkline.terminal import Result

if TYPE_CHECKING:
    from child.home import ChildHome

app = single()


@verb(app)
def reset(
    encoder: Annotated[str | None, Option(metavar="NAME", help="Only the heads trained with this encoder.")] = None,
    identity: Annotated[bool, Option("--identity", help="Also who this child is; it must be invited again.")] = False,
) -> Result:
    """Forget the private heads and everything that was fetched or made. Tasks, settings and samples stay."""
    home = open_home()
    if encoder is not None:
        _check_heads(home, encoder)
    what = "all heads" if encoder is None else f"the heads of encoder {encoder!r}"
    what += ", and who this child is" if identity else ""
    here().confirm(f"Forget {what} in {home.folder}?")
    lock = Lock(home.lock, "child")  # never under a running child
    try:
        everything = [home.private, home.sets, home.updates, home.encoders, home.cache, home.alone]
        paths = everything if encoder is None else [home.private / encoder]
        paths += [home.identity, home.key, home.ca, home.node] if identity else []
        gone = [path for path in paths if path.exists()]
        for path in gone:
            with storage(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        lock.release()
    names = [str(path.relative_to(home.folder)) for path in gone]
    return Result({"home": str(home.folder), "forgotten": names}, [f"forgotten: {', '.join(names) or 'nothing was there'}"])


def _check_heads(home: "ChildHome", encoder: str) -> None:
    """What is deleted is chosen from what lies here: a name with `..` in it, or none at all, must not reach another folder.

    :raises NotFound: no heads of such an encoder.
    """
    known = sorted(path.name for path in home.private.iterdir() if path.is_dir())
    if encoder not in known:
        raise NotFound(
            f"`--encoder` should be one that heads were trained with here ({', '.join(known) or 'none'}), found {encoder!r}."
        )
