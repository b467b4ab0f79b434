"""Stock Flower against ours: the same two clients, the same random parameters, one side after the other on the same machine.

An exchange is what both have: down, train nothing, up, fuse (ours: check and publish, too); evaluation is off on both sides. For
stock Flower that is the whole round. Ours asks before it and waits for confirmations: the whole round stands beside the exchange.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours, stock
from benchmarks.figures import Aim, Note, Run, Section, megabytes, ratio, seconds
from trunkline.clock import Clock


@dataclass(frozen=True, slots=True)
class Size:
    """One size of parameters, how often each side exchanges them, and in which codecs ours does."""

    name: str
    elements: int  # float32
    tensors: int
    stock_rounds: int
    our_rounds: int
    least: Mapping[str, float]  # codec -> times as fast as stock Flower, the aim


SIZES: Sequence[Size] = (
    Size("1 KiB", 256, 1, 4, 12, {"float32": 20.0}),
    Size("84 MB", 22_000_000, 20, 4, 8, {"float32": 6.0, "int8": 12.0}),
)
TINY: Sequence[Size] = (
    Size("1 KiB", 256, 1, 2, 3, {"float32": 20.0}),
    Size("4 MB", 1_000_000, 20, 2, 3, {"float32": 6.0, "int8": 12.0}),
)
"""For trying the script out."""

COLUMNS = (
    "parameters",
    "side",
    "codec",
    "rounds",
    "first round (s)",
    "round (s)",
    "exchange (s)",
    "parameters moved",
    "over the loopback",
    "exchange, times as fast",
    "whole round, times as fast",
)

ABOUT = """Seconds a round, median of the rounds after the first, which stands apart. `exchange` is the part from the moment the
members are fixed to the published target: down, train nothing, up, fuse, which is all that a round of stock Flower
is. A whole round of ours begins with an instruction and the confirmations, which stock Flower does not have. Both
clients add a small number of their own to what they get, so no two sets are the same bytes and nothing is saved by
content addressing. Ours: TLS, node keys, a token for each transfer, every value checked, a ledger on disk, what it
names flushed. Stock Flower 1.42: `flower-superlink --insecure`, two `flower-supernode --insecure`, FedAvg with
`fraction_evaluate=0`, all in memory. Parameters moved are the bytes of the sets that children and master give each
other in a round; over the loopback goes all that any program of the machine sent meanwhile, start-up included."""


def measure(sizes: Sequence[Size], folder: Path, clock: Clock, note: Note) -> Section:
    """Both sides at each size."""
    rows: list[Sequence[str]] = []
    aims: list[Aim] = []
    for number, size in enumerate(sizes):
        their = stock.measure(size.elements, size.tensors, size.stock_rounds, folder / f"stock-{number}", clock, note)
        rows.append(_row(size.name, "stock Flower", "float32", their))
        moved: dict[str, int] = {}
        for codec, least in size.least.items():
            place = folder / f"ours-{number}-{codec}"
            our = ours.measure(size.elements, size.tensors, size.our_rounds, place, clock, note, codec)
            times, whole, moved[codec] = ratio(their.exchange, our.exchange), ratio(their.usual, our.usual), our.moved
            note(
                f"{size.name} {codec}: stock {seconds(their.exchange)} s, ours {seconds(our.exchange)} s an exchange: "
                f"{times:.1f} times as fast"
            )
            rows.append(_row(size.name, "ours", codec, our, f"{times:.1f}", f"{whole:.1f}"))
            aims.append(Aim(f"an exchange of {size.name} in {codec}, stock over ours", times, least, reason=why(our, times, least)))
        if "int8" in moved:
            aims.append(Aim(f"bytes of {size.name}, float32 over int8", ratio(moved["float32"], moved["int8"]), 1 / 0.27))
    return Section("Exchange", ABOUT, COLUMNS, rows, aims)


def why(our: Run, times: float, least: float) -> str:
    """What is known of a missed aim."""
    return f"an exchange of ours takes {seconds(our.exchange)} s where {seconds(our.exchange * times / least)} s were needed."


def _row(size: str, side: str, codec: str, run: Run, times: str = "", whole: str = "") -> list[str]:
    figures = [seconds(run.first), seconds(run.usual), seconds(run.exchange), megabytes(run.moved), megabytes(run.wire)]
    return [size, side, codec, str(len(run.rounds)), *figures, times, whole]
