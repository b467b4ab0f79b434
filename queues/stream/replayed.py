"""A replay in a process of its own, so that it takes neither time nor memory from the server that goes on meanwhile.

    python -m queues.stream.replayed FOLDER --until STEP    prints what came out as JSON

It changes nothing. Workers that had another number of threads, or another kind of processor, added up in another order: then the
bits differ though nothing is wrong.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from queues.stream.home import StreamHome
from trunkline.api_errors import error_from
from trunkline.errors import Conflict, DeadlineExceeded, FailedError, NotFound, TrunklineError

SECONDS = 24 * 3600.0
"""That a replay may take."""

INSTALLATION = Path(__file__).resolve().parent.parent.parent


def ask(home: StreamHome, *, until: int, start: int | None = None, threads: int | None = None) -> dict[str, Any]:
    """Run one, and tell what came out: `start`, `step`, `batches`, `digest`, `kept`, `same`, `differs`.

    :param until: the step that it ends at: of a checkpoint, to be compared with.
    :param start: of a checkpoint, or 0; None: the earliest that the record reaches back to.
    :param threads: of torch, as the workers had them.
    :raises TrunklineError: what the process said.
    """
    options = {"--until": until, "--start": start, "--threads": threads}
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-P", "-m", "queues.stream.replayed", str(home.folder), *words]
    try:
        done = subprocess.run(
            command, cwd=INSTALLATION, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"waited {SECONDS:g} s for a replay of stream {home.folder.name!r}.") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
        if lines[-1].startswith('{"error"'):
            raise error_from(500, lines[-1])
        raise FailedError(f"the replay should end well, found: {lines[-1][:500] or f'code {done.returncode}'}")
    return json.loads(done.stdout.decode().splitlines()[-1])  # type: ignore[no-any-return]


def run(home: StreamHome, until: int, start: int | None, threads: int | None) -> dict[str, Any]:
    """The replay itself, in this process.

    :raises NotFound, Conflict: the record does not hold what is needed.
    """
    import torch

    from queues.stream.model import Learner
    from queues.stream.replay import replay

    if threads is not None:
        torch.set_num_threads(threads)
    learner = Learner(home.spec, home.encoder, [home.modules])
    initial = {name: p.detach().clone() for name, p in learner.parameters().items()}
    starts = [start] if start is not None else [0, *_checkpoints(home, until)]
    for place, begin in enumerate(starts):
        for name, parameter in learner.parameters().items():
            parameter.detach().copy_(initial[name])  # a try before this one has moved them
        try:
            with tempfile.TemporaryDirectory(prefix="replay-", dir=home.cache) as room:
                found = replay(home, learner, Path(room), start=begin, until=until)
        except (NotFound, Conflict):  # the record begins later, or what was computed there stood on what came before
            if place == len(starts) - 1:
                raise
            continue
        told = {name: getattr(found, name) for name in ("start", "step", "batches", "digest", "kept", "differs")}
        return told | {"same": found.same}
    raise NotFound(f"`{home.folder}` should have something to replay, found nothing.")


def _checkpoints(home: StreamHome, until: int) -> Sequence[int]:
    found = (int(path.parent.name) for path in (home.store / "checkpoints").glob("*/state.json") if path.parent.name.isdigit())
    return sorted(step for step in found if step < until)


def main() -> int:
    """Replay a folder; the exit code is that of its error, which is said as JSON in the last line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m queues.stream.replayed", description="Compute a stream's parameters anew.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", type=int, required=True, help="the step of a checkpoint")
    parser.add_argument("--start", type=int, default=None, help="the step of a checkpoint, or 0")
    parser.add_argument("--threads", type=int, default=None, help="of torch; those that the workers had")
    given = parser.parse_args()
    try:
        print(json.dumps(run(StreamHome(given.folder), given.until, given.start, given.threads)))
    except TrunklineError as error:
        print(json.dumps({"error": error.table()}), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
