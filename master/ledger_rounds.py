"""The ledger's part on the rounds of one job, written by one owner at a time.

instructing ──fix_members──> training ──close_updates─> fusing ──publish──> reporting ──close_round──> closed
     └───────────────────────────┴── skip_round ───────────┘──> skipped
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from master import schema
from master.ledger_base import change_job, current_version, get_job, plain, text, to_version
from master.ledger_pen import Pen
from master.records import Job, Memory, Round, Version
from master.states import ENDED_JOBS, JobState
from trunkline.errors import Conflict
from trunkline.messages import DeltaRef


class JobLedger(Pen):
    """One owner's pen on one job: reads like anybody, and writes as long as it is the owner.

    :raises Fenced: (every write) a newer owner took over, or the job was ended from outside.
    """

    def open_round(self, number: int, base: str, now: float | None = None) -> Round:
        """Open the next round, or find it open already.

        :param base: digest of the encoder's current version.
        :raises Conflict: the one before is still open, the number is not the next, the base is not current, or the job has ended.
        """
        with self._write() as connection:
            last = self._last_round(connection)
            if last is not None and last.number == number and last.open and last.base == base:
                return last
            expected = 1 if last is None else last.number + 1
            if number != expected or (last is not None and last.open):
                found = "none" if last is None else f"round {last.number} {last.state}"
                raise Conflict(f"the round to open should be {expected} with all before it ended, found {number} after {found}.")
            job = get_job(connection, self.job_id)
            current = current_version(connection, job.encoder)
            if not job.open or current.digest != base:
                raise Conflict(
                    f"a round should start in an open job from version {current.digest}, found a {job.state} job and {base}."
                )
            row = {"job": self.job_id, "number": number, "state": "instructing", "base": base, "reason": ""}
            connection.execute(schema.rounds.insert().values(row | {"opened": self._clock.now() if now is None else now}))
            self._event(connection, "round.opened", number, None, {"base": base, "version": current.number})
            return self._round(connection, number)

    def record_confirmation(
        self, number: int, child: str, confirmation: Mapping[str, Any], accepted: bool, reason: str | None = None, detail: str = ""
    ) -> None:
        """Record a child's answer to the instruction; the last one counts until the members are fixed.

        :raises Conflict: they are fixed already, and this answer is another one.
        """
        state = "confirmed" if accepted else "refused"
        row = {"confirmation": plain(confirmation), "reason": None if reason is None else str(reason), "detail": text(detail)}
        with self._write() as connection:
            before = self._find(connection, schema.members, number, child)
            if before is not None and (before["state"] != "refused") == accepted and all(before[key] == row[key] for key in row):
                return
            self._in_state(connection, number, "a confirmation", "instructing")
            row |= {"state": state, "at": self._clock.now()}
            self._put(connection, schema.members, number, child, row, known=before is not None)
            self._event(
                connection, "confirmation", number, child, {"accepted": accepted, "reason": row["reason"], "detail": row["detail"]}
            )

    def fix_members(self, number: int, children: Sequence[str], *, none: bool = False) -> Round:
        """Fix who takes part; the round is training from here on. Those who confirmed but are not taken are left out.

        :param none: whether the list may be empty, because others are still training from an earlier round.

        :raises Conflict: it is fixed already with another list, is empty, or names a child that did not confirm.
        """
        table, chosen = schema.members, set(children)
        with self._write() as connection:
            here = sa.and_(table.c.job == self.job_id, table.c.round == number)
            answers = {row.child: row.state for row in connection.execute(sa.select(table.c.child, table.c.state).where(here))}
            fixed = {child for child, state in answers.items() if state == "member"}
            if fixed == chosen and chosen:
                return self._round(connection, number)
            if none and not chosen and self._round(connection, number).state == "training":
                return self._round(connection, number)
            self._in_state(connection, number, "a list of members", "instructing")
            strangers = sorted(child for child in chosen if answers.get(child) != "confirmed")
            if strangers or not (chosen or none):
                raise Conflict(f"the members of round {number} should be children that confirmed, found {strangers or 'none'}.")
            confirmed = sa.and_(here, table.c.state == "confirmed")
            take = table.update().where(confirmed, table.c.child == sa.bindparam("taken")).values(state="member")
            if chosen:
                connection.execute(take, [{"taken": child} for child in sorted(chosen)])
            connection.execute(table.update().where(confirmed).values(state="left_out"))
            self._set_round(connection, number, "training")
            self._event(connection, "round.members", number, None, {"children": sorted(chosen)})
            return self._round(connection, number)

    def record_update(
        self, number: int, child: str, update: Mapping[str, Any], digest: str, size: int, origin: int | None = None
    ) -> None:
        """Record an update that was checked, and whose file is stored.

        :param origin: the round whose initial set it was trained from; None: the same.

        :raises Conflict: the child is no member, has an update recorded already, or the round takes no more.
        """
        with self._write() as connection:
            self._in_state(connection, number, "an update", "training")
            origin = number if origin is None else origin
            member = self._find(connection, schema.members, origin, child)
            if member is None or member["state"] != "member":
                raise Conflict(f"an update of round {origin} should come from a member, found {child!r}.")
            if self._find(connection, schema.updates, number, child) is not None:
                raise Conflict(f"child {child!r} should send one update in round {number}, found one recorded already.")
            here = sa.and_(schema.updates.c.job == self.job_id, schema.updates.c.round == number)
            arrival = 1 + connection.execute(sa.select(sa.func.count()).where(here)).scalar_one()
            row = {"update": dict(update), "digest": digest, "size": size, "forgotten": False, "at": self._clock.now()}
            row |= {"arrival": arrival, "origin": origin}
            self._put(connection, schema.updates, number, child, row, known=False)
            self._event(connection, "update.accepted", number, child, {"digest": digest, "size": size, "origin": origin})

    def refuse_update(self, number: int, child: str, reason: str, detail: str, data: Mapping[str, Any] | None = None) -> None:
        """Record that something from a child was refused, and why; a child may have several, also after the round has ended."""
        row = {"job": self.job_id, "round": number, "child": text(child)[:64], "reason": str(reason), "detail": text(detail)}
        with self._write() as connection:
            self._round(connection, number)
            connection.execute(schema.refusals.insert().values(row | {"data": dict(data or {}), "at": self._clock.now()}))
            self._event(connection, "update.refused", number, row["child"], {"reason": str(reason), "detail": text(detail)})

    def close_updates(self, number: int) -> Round:
        """Take no more updates. Repeating it changes nothing.

        :raises Conflict: the members are not fixed yet, or the round has gone on.
        """
        with self._write() as connection:
            if self._in_state(connection, number, "fusing", "training", "fusing").state == "training":
                self._set_round(connection, number, "fusing")
                self._event(connection, "round.fusing", number, None, None)
            return self._round(connection, number)

    def publish(
        self,
        number: int,
        digest: str,
        size: int,
        parent: str,
        weights: Mapping[str, float],
        delta: DeltaRef | None = None,
        data: Mapping[str, Any] | None = None,
        memory: Memory | None = None,
    ) -> Version:
        """Make the fused set the encoder's next version and the round's target, in one transaction. Repeating it changes nothing.

        :param parent: digest of the set that it was trained from, the round's base.
        :param weights: child -> share in the fused set.
        :param memory: what the rule remembers and saw, and what a lossy codec left out.
        :raises Conflict: the round has another target, another base, or no members yet; or the encoder has moved on.
        """
        with self._write() as connection:
            found = self._in_state(connection, number, "a target", "training", "fusing", "reporting", "closed")
            job = get_job(connection, self.job_id)
            if found.target is not None:
                return self._published(connection, job, found, digest)
            current = current_version(connection, job.encoder)
            if not parent == found.base == current.digest:
                raise Conflict(f"the parent of a target should be {current.digest}, found {parent} in a round from {found.base}.")
            now = self._clock.now()
            row = {"encoder": job.encoder, "number": current.number + 1, "digest": digest, "size": size, "kind": "round"}
            row |= {"parent": current.digest, "parent_number": current.number, "job": job.id, "round": number, "created": now}
            row |= {"weights": {child: float(share) for child, share in weights.items()}, "data": dict(data or {})}
            if delta is not None:
                row |= {"delta_digest": delta.digest, "delta_size": delta.size, "delta_codec": delta.codec}
            connection.execute(schema.versions.insert().values(row))
            kept = (
                {}
                if memory is None
                else {"rule_state": memory.rule_state, "residual": memory.residual, "notes": dict(memory.notes)}
            )
            self._set_round(connection, number, "reporting", target=digest, version=current.number + 1, **kept)
            self._event(
                connection, "round.published", number, None, {"digest": digest, "size": size, "version": current.number + 1}
            )
            return current_version(connection, job.encoder)

    def _published(self, connection: Connection, job: Job, found: Round, digest: str) -> Version:
        if found.target != digest:
            raise Conflict(f"the target of round {found.number} should be published once, found {found.target} and {digest}.")
        table = schema.versions
        query = sa.select(table).where(table.c.encoder == job.encoder, table.c.number == found.version)
        return to_version(connection.execute(query).mappings().one())

    def record_report(self, number: int, child: str, report: Mapping[str, Any]) -> None:
        """Record what the target set scores at a child; the last one counts. A closed round may be reported on again.

        :raises Conflict: the round has no target.
        """
        with self._write() as connection:
            self._in_state(connection, number, "a report", "reporting", "closed")
            known = self._find(connection, schema.reports, number, child) is not None
            self._put(connection, schema.reports, number, child, {"report": dict(report), "at": self._clock.now()}, known=known)
            self._event(connection, "report", number, child, {"report": dict(report)})

    def skip_round(self, number: int, reason: str) -> Round:
        """End a round without a target. Repeating it changes nothing.

        :raises Conflict: it has a target.
        """
        with self._write() as connection:
            if self._in_state(connection, number, "skipping", "instructing", "training", "fusing", "skipped").state != "skipped":
                self._end_round(connection, number, "skipped", reason)
            return self._round(connection, number)

    def close_round(self, number: int, reason: str = "", losses: Iterable[Mapping[str, Any]] = ()) -> Round:
        """End a round that has a target. Repeating it changes nothing.

        :param losses: of tasks that sharing hurts, told as events together with the end, so that each is told once.
        :raises Conflict: it has none.
        """
        with self._write() as connection:
            if self._in_state(connection, number, "closing", "reporting", "closed").state != "closed":
                for loss in losses:
                    self._event(connection, "task.hurt", number, None, loss)
                self._end_round(connection, number, "closed", reason)
            return self._round(connection, number)

    def finish(self, state: JobState, reason: str = "") -> Job:
        """End the job, and with it its open round. Repeating it changes nothing.

        :param state: finished, failed or aborted.
        :raises Conflict: it has ended in another state.
        """
        with self._write() as connection:
            job = get_job(connection, self.job_id)
            if job.state != state:
                if not job.open or state not in ENDED_JOBS:
                    raise Conflict(f"job {job.id!r} should be open to become {state}, found it {job.state}.")
                change_job(connection, job, state, reason, self._clock.now(), epoch=self.epoch)
            return get_job(connection, self.job_id)

    def forget_updates(self, before_round: int) -> list[str]:
        """Give up the files of all earlier rounds: their updates, and what they left to rounds that are given up too.

        What the updates said stays on record.

        :return: digests whose files may be deleted: no other row names them.
        """
        table, rounds = schema.updates, schema.rounds
        old = sa.and_(table.c.job == self.job_id, table.c.round < before_round, table.c.forgotten.is_(False))
        # The round before the oldest that is kept leaves what that one starts from.
        first = self.last_fused(before_round)
        older = sa.and_(rounds.c.job == self.job_id, rounds.c.number < (first.number if first is not None else 0))
        with self._write() as connection:
            digests = set(connection.execute(sa.select(table.c.digest).where(old)).scalars())
            for row in connection.execute(sa.select(rounds.c.rule_state, rounds.c.residual).where(older)):
                digests |= {digest for digest in row if digest is not None}
            if not digests:
                return []
            connection.execute(table.update().where(old).values(forgotten=True))
            connection.execute(rounds.update().where(older).values(rule_state=None, residual=None))
            for query in schema.naming():
                digests -= set(connection.execute(query).scalars())
            self._event(connection, "updates.forgotten", None, None, {"before": before_round, "files": len(digests)})
            return sorted(digests)
