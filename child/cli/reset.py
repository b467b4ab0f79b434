"""`trunkline-child reset`."""

import shutil
from typing import Annotated

from typer import Option

from child.cli.base import open_home, verb
from trunkline.console import here, single
from trunkline.files import Lock, storage
from trunkline.terminal import Result

app = single()


@verb(app)
def reset(
    encoder: Annotated[str | None, Option(metavar="NAME", help="Only the heads trained with this encoder.")] = None,
    identity: Annotated[bool, Option("--identity", help="Also who this child is; it must be invited again.")] = False,
) -> Result:
    """Forget the private heads and everything that was fetched or made. Tasks, settings and samples stay."""
    home = open_home()
    what = f"the heads of encoder {encoder!r}" if encoder else "all heads" + (", and who this child is" if identity else "")
    here().confirm(f"Forget {what} in {home.folder}?")
    lock = Lock(home.lock, "child")  # never under a running child
    try:
        paths = [home.private / encoder] if encoder else [home.private, home.sets, home.updates, home.encoders, home.cache]
        paths += [home.identity, home.key, home.ca, home.node] if identity else []
        gone = [path for path in paths if path.exists()]
        for path in gone:
            with storage(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        lock.release()
    names = [str(path.relative_to(home.folder)) for path in gone]
    return Result({"home": str(home.folder), "forgotten": names}, [f"forgotten: {', '.join(names) or 'nothing was there'}"])
