"""`python -m benchmarks.value.worker FOLDER`: runs from standard input, a line of JSON each, are each answered so."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.value.study import Run
from benchmarks.value.variants import Workplace, carry_out
from trunkline.errors import TrunklineError


def main(folder: str) -> int:
    """Until there are no more."""
    place = Workplace(Path(folder).absolute())
    place.folder.mkdir(parents=True, exist_ok=True)
    for line in sys.stdin:
        print(json.dumps(_answer(Run.of_table(json.loads(line)), place)), flush=True)
    return 0


def _answer(run: Run, place: Workplace) -> dict[str, Any]:
    try:
        return carry_out(run, place).table()
    except TrunklineError as error:
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
