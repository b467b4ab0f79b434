"""The process in which the rounds of one job run: a ServerApp without Flower's own runner. Started by `master.superlink`.

Flower's `flwr-serverapp` takes three seconds to start, waits without end for a SuperLink that is gone, and leaves by `os._exit`.
This one speaks to the Runtime API through `RuntimeGrid` and ends as any program does.
"""

import logging
import random
import signal
import sys
from pathlib import Path

from master.flower.app import app
from master.flower.grid import RuntimeGrid
from master.process import take_order
from trunkline.clock import SystemClock
from trunkline.errors import Fenced, TrunklineError

logger = logging.getLogger("master.serverapp")


def main() -> int:
    """Run the ServerApp that the order names.

    :returns: 0 when the job's rounds ended by themselves.
    """
    import master.jobrun  # noqa: F401  # what the run will need: the order may come much later, and then it starts at once

    order = take_order()
    grid = RuntimeGrid.connect(order["address"], _read(order["ca"]), order["token"], SystemClock(), random.Random())  # noqa: S311
    signal.signal(signal.SIGTERM, lambda number, frame: grid.leave())  # no exception from here: it could leave a lock held
    with grid:
        try:
            app(grid=grid, context=grid.take_task())
        except Fenced as error:
            logger.info("leaving: %s", error)
            return error.exit_code
        except TrunklineError as error:
            logger.error("the run failed: %s", error)
            grid.finish("failed", str(error))
            return error.exit_code
        except Exception as error:
            logger.exception("the run failed")
            grid.finish("failed", f"{type(error).__name__}: {error}")
            return TrunklineError.exit_code
        grid.finish("completed", "")
    return 0


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


if __name__ == "__main__":
    sys.exit(main())
