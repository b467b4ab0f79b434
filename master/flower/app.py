"""The ServerApp in which the rounds of one job run, in our own process or under Flower's `flwr-serverapp`."""

import importlib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from master.flower.link import Boots, Directory, FlowerLink
from trunkline.clock import SystemClock

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one job's rounds. The run's configuration names the job and the master's state folder."""
    config = context.run_config
    clock = SystemClock()
    module, _, name = str(config.get("entry") or "master.jobrun:run").partition(":")
    run = getattr(importlib.import_module(module), name)

    def link(directory: Directory, boots: Boots) -> FlowerLink:
        hold = getattr(grid, "hold", None)  # ours has one; Flower's own looks again and again
        return FlowerLink(grid, clock, directory, boots, hold=hold)

    run(str(config["job"]), Path(str(config["state"])), link)
