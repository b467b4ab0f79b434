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
    lines = overview(kinds, ("name", "options", "about"))
    return Result(kinds, [*lines, "", "A codec is NAME:OPTION=VALUE,…, e.g. topk:share=0.05. A job that names none has float32."])


@verb(app)
def show(name: Annotated[str, Argument(metavar="NAME", help="With or without options, such as topk:share=0.05.")]) -> Result:
    """What a codec does, where it comes from, and its options."""
    from trunkline.choices import describe
    from trunkline.codecs import find

    codec = find(name)
    kind = describe(type(codec), codec if ":" in name else None)
    return Result(kind, whole(kind))
