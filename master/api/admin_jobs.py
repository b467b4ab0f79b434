"""The admin's part on jobs, rounds and events."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from master.api.answers import Free, Number, body_of, table
from master.api.parts import Parts
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.records import Event, Job, JobState, Round
from master.sharing.history import gains_of, hurt_in
from trunkline.errors import NotFound, SpecError
from trunkline.messages import Name, Value
from trunkline.settings import explain
from trunkline.values import SPLITS

LOOK_SECONDS = 0.2
"""How often a long poll looks into the ledger; rounds are written by another process."""


class StartJob(Value):
    """`POST /v1/admin/jobs`. The same key again gives the same job."""

    spec: Free  # a JobSpec; checked by itself, so that the message names its keys
    name: Name | None = None
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class StopJob(Value):
    """Why a job is paused or aborted, for people."""

    reason: Annotated[str, Field(max_length=500)] = ""


def job_spec(spec: dict[str, Any]) -> JobSpec:
    """A job's declaration, checked.

    :raises SpecError: names the key, what should be and what was found.
    """
    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecError(explain(JobSpec, error, "the job")) from None


def _check_stream(parts: Parts, spec: JobSpec) -> None:
    """:raises NotFound: there is no such stream.
    :raises SpecError: it trains another encoder.
    """
    if spec.stream is None:
        return
    if parts.streams is None:
        raise NotFound(f"`stream` should be one of this master, found {spec.stream!r} and none here.")
    trains = parts.streams.home(spec.stream).spec.encoder
    if trains != spec.encoder:
        raise SpecError(f"`stream` should train encoder {spec.encoder!r} too, found that {spec.stream!r} trains {trains!r}.")


def routes(parts: Parts) -> APIRouter:
    """Jobs: list, start, show, pause, resume, abort; their rounds; events."""
    router = APIRouter()
    ledger, limit = parts.ledger, parts.settings.max_body_bytes

    @router.get("/jobs")
    def jobs() -> list[dict[str, Any]]:
        return [table(job) for job in ledger.jobs()]

    @router.post("/jobs", status_code=201)
    def start(body: Annotated[StartJob, Depends(body_of(StartJob, limit))]) -> dict[str, Any]:
        spec = job_spec(body.spec)
        spec.fuse_rule.check_installed()
        _check_stream(parts, spec)
        job, new = ledger.start_job(spec.encoder, spec.model_dump(mode="json"), name=body.name, key=body.key)
        parts.actions.wake(job.id)
        return {"job": table(job), "new": new}

    @router.get("/jobs/{job_id}")
    def show(job_id: str) -> dict[str, Any]:
        return _job(parts, ledger.job(job_id))

    @router.post("/jobs/{job_id}/pause")
    def pause(job_id: str, body: Annotated[StopJob, Depends(body_of(StopJob, limit))]) -> dict[str, Any]:
        return _move(parts, job_id, "paused", body.reason)

    @router.post("/jobs/{job_id}/resume")
    def resume(job_id: str) -> dict[str, Any]:
        return _move(parts, job_id, "waiting", "")

    @router.post("/jobs/{job_id}/abort")
    def abort(job_id: str, body: Annotated[StopJob, Depends(body_of(StopJob, limit))]) -> dict[str, Any]:
        return _move(parts, job_id, "aborted", body.reason)

    @router.get("/jobs/{job_id}/rounds")
    def rounds(job_id: str) -> list[dict[str, Any]]:
        return [table(one) for one in ledger.reader(ledger.job(job_id).id).rounds()]

    @router.get("/jobs/{job_id}/rounds/{number}")
    def round_(job_id: str, number: Number) -> dict[str, Any]:
        return _round(parts, ledger.job(job_id), number)

    @router.get("/events")
    async def events(
        after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
        job: str | None = None,
        wait: Annotated[float, Query(ge=0)] = 0.0,
        limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000,
    ) -> dict[str, Any]:
        """What happened after an event; waits for the next one if there is none yet."""
        name = (await run_in_threadpool(ledger.job, job)).id if job is not None else None
        found = await _events(parts, lambda: ledger.events(after, name, limit), min(wait, parts.settings.poll_seconds))
        return {"events": [table(event) for event in found], "last": found[-1].id if found else after}

    return router


def _job(parts: Parts, job: Job) -> dict[str, Any]:
    """A job with its rounds in short, and the tasks that sharing hurt in the newest one that was reported on."""
    reader = parts.ledger.reader(job.id)
    rounds = reader.rounds()
    closed = [one for one in rounds if one.state == "closed"]
    return table(job) | {"rounds": [table(one) for one in rounds], "hurt": _hurt(reader, job, closed[-1]) if closed else []}


def _hurt(reader: JobReader, job: Job, round_: Round) -> list[dict[str, Any]]:
    return [loss.told() for loss in hurt_in(reader, round_, int(job.spec.get("rounds", 1)))]


def _move(parts: Parts, job_id: str, state: JobState, reason: str) -> dict[str, Any]:
    job = parts.ledger.set_job_state(parts.ledger.job(job_id).id, state, reason)
    parts.actions.wake(job.id)
    return table(job)


def _round(parts: Parts, job: Job, number: int) -> dict[str, Any]:
    """A round with its members, updates and their weights, refusals with their reason codes, reports, and what tasks gained."""
    ledger = parts.ledger.reader(job.id)
    round_ = ledger.round(number)
    if round_ is None:
        raise NotFound(f"job {job.id!r} should have a round {number}, found none.", hint=f"See `trunkline round list {job.id}`.")
    weights = parts.ledger.version(job.encoder, round_.version).weights if round_.version is not None else {}
    return table(round_) | {
        "members": table(ledger.members(number)),
        "updates": table(ledger.updates(number)),
        "weights": weights,
        "refusals": table(ledger.refusals(number)),
        "reports": table(ledger.reports(number)),
        "gains": [gain.told() for split in SPLITS for gain in gains_of(ledger, number, split)],
        "hurt": _hurt(ledger, job, round_),
    }


async def _events(parts: Parts, look: Callable[[], list[Event]], wait: float) -> list[Event]:
    end = parts.clock.monotonic() + wait
    while True:
        found = await run_in_threadpool(look)
        if found or parts.stopping.is_set() or parts.clock.monotonic() >= end:
            return found
        await asyncio.sleep(LOOK_SECONDS)
