"""`python -m benchmarks.learning.worker URL FOLDER`: runs from standard input, a line of JSON each, are each answered so."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.study import Run
from benchmarks.learning.train import model, train
from trunkline.errors import TrunklineError


def main(url: str, folder: str) -> int:
    """Until there are no more.

    :param url: of a server of queues; others may use it, too.
    """
    torch.set_num_threads(1)
    place = Path(folder).absolute()
    shutil.rmtree(place / "encoder", ignore_errors=True)
    encoder = model(place / "encoder")
    for line in sys.stdin:
        print(json.dumps(_answer(Run(**json.loads(line)), encoder, place, url)), flush=True)
    return 0


def _answer(run: Run, encoder: Path, place: Path, url: str) -> dict[str, Any]:
    try:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            return train(run, encoder, Path(folder), url)
    except TrunklineError as error:
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
