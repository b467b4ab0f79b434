"""`trunkline codec`: how parameter sets travel."""

from typing import Annotated

from typer import Argument

from master.cli.base import noun, verb
from master.cli.described import overview, whole
from trunkline.terminal import Result

app = noun("Codecs: how parameter sets travel.")


@verb(app, "list")
def list_() -> Result:
    """Every codec with its options."""
    from trunkline.choices import describe
    from trunkline.codecs import CODECS

    kinds = [describe(kind) for kind in CODECS.values()]
    return Result(kinds, overview(kinds, ("name", "options", "about")))


@verb(app)
def show(name: Annotated[str, Argument(metavar="NAME", help="With or without options, such as topk:share=0.05.")]) -> Result:
    """What a codec does, where it comes from, and its options."""
    from trunkline.choices import describe
    from trunkline.codecs import find

    kind = describe(type(find(name)))
    return Result(kind, whole(kind))
