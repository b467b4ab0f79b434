"""The parameter store of one host: processor time of each step of an update's way, beside a copy of the same bytes.

python -m benchmarks.store [FOLDER]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.codecs import FULL
from benchmarks.figures import Aim, Note, Section
from queues.store.reader import FileReader
from queues.store.store import Rows, Sent, Verdict
from queues.store.writer import FileWriter
from queues.stream.spec import StreamSpec
from trunkline.tensors import SetSpec

LIMIT = 0.080
"""Seconds of processor time that applying an update may take."""

ABOUT = """AdamW on {elements:.1f} million float32 parameters in the shapes of a small text encoder, its gradient sent by one
process to the store in a folder and applied there; processor time in ms, median of {repeats} after three first ones. *Applying* is
all of it: CRC of the gradient, norm, clipping, bringing up the slot that is a step behind, AdamW, the flip, and the verdict.
*Rows*: the gradient has {rows} of the {words} word embeddings. A copy of one set of the parameters in memory: {copied:.1f} ms."""


def measure(spec: SetSpec, repeats: int, folder: Path, note: Note) -> Section:
    """Each step of the way, dense and with a row-sparse embedding."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    parameters = {f"shared/{name}": torch.randn(t.shape, generator=random) * 0.05 for name, t in spec.items()}
    dense: dict[str, Tensor | Rows] = {name: torch.randn(p.shape, generator=random) * 1e-3 for name, p in parameters.items()}
    words = len(parameters["shared/words"])
    index = torch.arange(0, words, max(1, words // 2000))
    sparse = dense | {
        "shared/words": Rows(index, torch.randn((len(index), *parameters["shared/words"].shape[1:]), generator=random))
    }
    flat, other = (torch.zeros(sum(p.numel() for p in parameters.values())) for _ in range(2))
    copied = _median([_seconds(lambda: flat.copy_(other)) for _ in range(repeats + 3)])
    rows, took = [], {}
    for word, gradient in (("dense", dense), ("rows", sparse)):
        note(f"store: {word}, {repeats} times {flat.numel()} parameters")
        found = _measured(folder / word, parameters, gradient, repeats)
        took[word] = found["received"] + found["applied"]
        rows.append(
            (word, *(f"{1e3 * found[what]:.1f}" for what in found), f"{1e3 * took[word]:.1f}", f"{took[word] / copied:.1f}")
        )
    about = ABOUT.format(elements=flat.numel() / 1e6, repeats=repeats, rows=len(index), words=words, copied=1e3 * copied)
    columns = ("gradient", "send", "receive (CRC)", "apply, verdict", "read", "applying", "applying, in copies")
    reason = "see the copy's speed above."
    aim = Aim.at_most("processor time of applying an update", 1e3 * took["dense"], 1e3 * LIMIT, "ms", reason)
    return Section("Parameter store", about, columns, rows, [aim])


def _measured(folder: Path, parameters: dict[str, Tensor], gradient: dict[str, Tensor | Rows], repeats: int) -> dict[str, float]:
    task = {"name": "t", "head": "single", "fields": ["x"], "label": "y", "labels": ["a", "b"]}
    spec = StreamSpec.model_validate({"name": "s", "encoder": "e", "tasks": [task], "store": {"staleness": 1000}}, strict=False)
    writer, reader = FileWriter(folder, spec, parameters, "benchmark"), FileReader(folder)
    into = {name: torch.empty_like(p) for name, p in parameters.items()}
    took: dict[str, list[float]] = {"sent": [], "received": [], "applied": [], "read": []}
    for number in range(repeats + 3):
        sent = Sent(str(number), 1, "t", number, 32, 1.0, gradient)
        took["sent"].append(_seconds(lambda sent=sent: reader.send(sent)))
        took["received"].append(_seconds(lambda batch=sent.batch: writer.received(batch, 1)))
        took["applied"].append(_seconds(lambda batch=sent.batch: _apply(writer, batch)))
        took["read"].append(_seconds(lambda: reader.read(into)))
    writer.close()
    return {what: _median(seconds) for what, seconds in took.items()}


def _apply(writer: FileWriter, batch: str) -> None:
    found = writer.received(batch, 1)
    assert found is not None
    writer.apply((found,))
    writer.done(batch, 1, Verdict.APPLIED)


def _median(seconds: list[float]) -> float:
    return median(seconds[3:])


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(folder: Path) -> None:
    """Print it."""
    found = measure(FULL, 15, folder, lambda line: print(line, file=sys.stderr))
    print(found.about, "", " | ".join(found.columns), *(" | ".join(row) for row in found.rows), sep="\n")
    for aim in found.aims:
        print(f"{aim.what}: {aim.found:.1f} {aim.unit}, at most {aim.least:.1f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        main(Path(place))
