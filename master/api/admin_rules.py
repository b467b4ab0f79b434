"""The admin's part on fuse rules: recorded rounds replayed, and other rules tried on them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from master import replay, trial
from master.api.answers import Number, body_of
from master.api.parts import Parts
from trunkline.messages import Value


class TryRule(Value):
    """`POST /v1/admin/jobs/{job}/trial`."""

    rule: Annotated[str, Field(min_length=1, max_length=1000)]
    round: Annotated[int, Field(ge=1)] | None = None  # None: every round whose updates are kept


def routes(parts: Parts) -> APIRouter:
    """Replay and trial. Both read whole updates, so they take as long as a fusion."""
    router = APIRouter()
    ledger, blobs, limit = parts.ledger, parts.blobs, parts.settings.max_body_bytes

    @router.post("/jobs/{job_id}/rounds/{number}/replay")
    def replayed(job_id: str, number: Number) -> dict[str, Any]:
        return replay.replay(blobs, ledger.reader(ledger.job(job_id).id), number).table()

    @router.post("/jobs/{job_id}/trial")
    def tried(job_id: str, body: Annotated[TryRule, Depends(body_of(TryRule, limit))]) -> list[dict[str, Any]]:
        found = trial.trials(blobs, ledger.reader(ledger.job(job_id).id), body.rule, body.round)
        return [one.table() for one in found]

    return router
