"""The ledger's part on jobs: starting them once, handing them to one owner, taking them back from an owner that died."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from master import schema
from master.ledger_base import Part, add_event, change_job, current_version, get_job, plain, record, text
from master.ledger_rounds import JobLedger
from master.records import Job
from master.states import ENDED_JOBS, OPEN_JOBS, JobState
from trunkline.errors import Conflict, SpecError

KEY_LIMIT = 200

_NEXT: Mapping[JobState, Sequence[JobState]] = {
    "waiting": ("running", "paused", *ENDED_JOBS),
    "running": ("waiting", "paused", *ENDED_JOBS),
    "paused": ("waiting", "running", *ENDED_JOBS),
    "finished": (),
    "failed": (),
    "aborted": (),
}


class JobPart(Part):
    """Jobs and who owns them."""

    def start_job(
        self,
        encoder: str,
        spec: Mapping[str, Any],
        *,
        name: str | None = None,
        key: str | None = None,
        requested_by: str | None = None,
    ) -> tuple[Job, bool]:
        """Start a job; it waits until somebody owns it. The second value tells whether it was newly made.

        :param name: what people call it; the newest of a name is found by it.
        :param key: an idempotency key: the same key gives the same job, whatever happened in between.
        :param requested_by: the child that asked for it; its request joins a job of the encoder that is open already.
        :raises NotFound: no such encoder.
        :raises SpecError: the key is too long.
        :raises Conflict: the key was used for another job; or an operator starts a second job on an encoder.
        """
        spec = plain(spec)
        if key is not None and (len(key) > KEY_LIMIT or not key.isprintable()):
            raise SpecError(f"`key` should have at most {KEY_LIMIT} printable characters, found {len(key)}.")
        with self._db.write() as connection:
            if key is not None and (earlier := _find(connection, schema.jobs.c.key == key)) is not None:
                if (earlier.encoder, earlier.spec) != (encoder, spec):
                    raise Conflict(f"`key` {key!r} should be new, found job {earlier.id!r} with another encoder or spec.")
                return earlier, False
            current_version(connection, encoder)
            opened = _find(connection, schema.jobs.c.encoder == encoder, schema.jobs.c.state.in_(OPEN_JOBS))
            if opened is not None and requested_by is not None:
                return opened, False
            if opened is not None:
                raise Conflict(
                    f"encoder {encoder!r} should have no open job, found {opened.id!r} ({opened.state}).",
                    hint=f"Wait for it, or `trunkline job abort {opened.id}`.",
                )
            job = self._add(connection, encoder, spec, name, key, requested_by)
            return job, True

    def _add(
        self, connection: Connection, encoder: str, spec: Mapping[str, Any], name: str | None, key: str | None, child: str | None
    ) -> Job:
        ordinal = 1 + (connection.execute(sa.select(sa.func.max(schema.jobs.c.ordinal))).scalar() or 0)
        job_id, now = f"{(name or encoder)[:50]}-{ordinal}", self._clock.now()
        row = {"id": job_id, "ordinal": ordinal, "encoder": encoder, "name": name, "key": key, "spec": spec, "requested_by": child}
        row |= {"state": "waiting", "reason": "", "epoch": 0, "created": now}
        connection.execute(schema.jobs.insert().values(row))
        add_event(connection, now, "job.started", job=job_id, child=child, data={"encoder": encoder})
        return get_job(connection, job_id)

    def job(self, job_id: str) -> Job:
        """A job by id, or the newest of a name.

        :raises NotFound: no such job.
        """
        with self._db.read() as connection:
            return get_job(connection, job_id)

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        with self._db.read() as connection:
            return _all(connection)

    def open_jobs(self) -> list[Job]:
        """Jobs that wait, run or are paused, oldest first."""
        with self._db.read() as connection:
            return _all(connection, schema.jobs.c.state.in_(OPEN_JOBS))

    def set_job_state(self, job_id: str, state: JobState, reason: str = "") -> Job:
        """Move a job to another state. Ending it ends its open round and fences off its owner.

        :raises NotFound: no such job.
        :raises Conflict: it has ended already in another state.
        """
        with self._db.write() as connection:
            job = get_job(connection, job_id)
            if job.state == state:
                return job
            if state not in _NEXT[job.state]:
                raise Conflict(f"job {job.id!r} should be open to become {state}, found it {job.state}.")
            change_job(connection, job, state, reason, self._clock.now(), epoch=job.epoch + (state in ENDED_JOBS))
            return get_job(connection, job.id)

    def own(self, job_id: str, owner: str) -> JobLedger:
        """Become the owner of a job: from now on every older owner is refused whatever it writes. A waiting job runs now.

        :param owner: who it is, for people: host and process.
        :raises NotFound: no such job.
        :raises Conflict: it has ended.
        """
        with self._db.write() as connection:
            job, now = get_job(connection, job_id), self._clock.now()
            if not job.open:
                raise Conflict(f"job {job.id!r} should be open to be owned, found it {job.state}.")
            values: dict[str, Any] = {"epoch": job.epoch + 1, "owner": text(owner)[:200], "heartbeat": now}
            connection.execute(schema.jobs.update().where(schema.jobs.c.id == job.id).values(values))
            add_event(connection, now, "job.owned", job=job.id, data={"owner": values["owner"], "epoch": values["epoch"]})
            if job.state == "waiting":
                change_job(connection, job, "running", "", now, epoch=job.epoch + 1)
        return JobLedger(self._db, self._clock, job.id, job.epoch + 1)

    def set_run(self, job_id: str, run_id: str | None, pid: int | None = None) -> Job:
        """Note which run of the transport, and which process, works on a job.

        :raises NotFound: no such job.
        """
        with self._db.write() as connection:
            job = get_job(connection, job_id)
            run = None if run_id is None else str(run_id)
            connection.execute(schema.jobs.update().where(schema.jobs.c.id == job.id).values(run_id=run, pid=pid))
            add_event(connection, self._clock.now(), "job.run", job=job.id, data={"run": run, "pid": pid})
            return get_job(connection, job.id)

    def reap(self, older_than: float) -> list[Job]:
        """Take back running jobs whose owner was not heard of for so many seconds: they wait again, the owner is fenced off."""
        jobs, now = schema.jobs, self._clock.now()
        with self._db.write() as connection:
            silent = _all(
                connection, jobs.c.state == "running", sa.func.coalesce(jobs.c.heartbeat, jobs.c.created) < now - older_than
            )
            for job in silent:
                change_job(connection, job, "waiting", "its owner fell silent", now, epoch=job.epoch + 1)
                connection.execute(jobs.update().where(jobs.c.id == job.id).values(owner=None, run_id=None, pid=None))
            return [get_job(connection, job.id) for job in silent]


def _find(connection: Connection, *conditions: Any) -> Job | None:
    row = connection.execute(sa.select(schema.jobs).where(*conditions)).mappings().first()
    return None if row is None else record(Job, row)


def _all(connection: Connection, *conditions: Any) -> list[Job]:
    query = sa.select(schema.jobs).where(*conditions).order_by(schema.jobs.c.ordinal)
    return [record(Job, row) for row in connection.execute(query).mappings()]
