"""The ledger's part on encoders and their versions."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from master import schema
from master.ledger_base import Part, add_event, current_version, no_encoder, plain, record, to_version
from master.records import Encoder, Version
from master.states import ENDED_ROUNDS, OPEN_JOBS
from trunkline.errors import Conflict, NotFound


class EncoderPart(Part):
    """Encoders, their versions and lineage."""

    def create_encoder(
        self,
        name: str,
        type: str,
        spec: Mapping[str, Any],
        manifest: str,
        shared: Mapping[str, Any],
        first: str,
        size: int,
    ) -> Encoder:
        """Declare an encoder and publish its initial parameter set as version 1. Repeating it changes nothing.

        :param manifest: digest of the list of its files.
        :param shared: name -> [shape, dtype] of every shared tensor.
        :param first: digest of the initial parameter set; `size` its bytes.
        :raises Conflict: it exists with other content.
        """
        content = {"name": name, "type": type, "spec": plain(spec), "manifest": manifest, "shared": plain(shared)}
        with self._db.write() as connection:
            found = _find_encoder(connection, name)
            if found is not None:
                initial = _get_version(connection, name, 1)
                same = all(getattr(found, key) == value for key, value in content.items())
                if not same or (initial.digest, initial.size) != (first, size):
                    raise Conflict(
                        f"encoder {name!r} should be new or the same as before, found other content.", hint="Choose another name."
                    )
                return found
            now = self._clock.now()
            connection.execute(schema.encoders.insert().values(content | {"created": now}))
            _add_version(connection, name, 1, {"digest": first, "size": size, "kind": "initial", "created": now})
            add_event(connection, now, "encoder.created", data={"encoder": name, "digest": first})
            created = _find_encoder(connection, name)
            assert created is not None
            return created

    def encoder(self, name: str) -> Encoder:
        """:raises NotFound: no such encoder."""
        with self._db.read() as connection:
            found = _find_encoder(connection, name)
        if found is None:
            raise no_encoder(name)
        return found

    def encoders(self) -> list[Encoder]:
        """All of them, by name."""
        return self._encoders(sa.select(schema.encoders))

    def encoders_of_type(self, type: str) -> list[Encoder]:
        """Those that read this kind of thing, by name."""
        return self._encoders(sa.select(schema.encoders).where(schema.encoders.c.type == type))

    def _encoders(self, query: sa.Select[Any]) -> list[Encoder]:
        with self._db.read() as connection:
            rows = connection.execute(query).mappings().all()
        return sorted((record(Encoder, row) for row in rows), key=lambda encoder: encoder.name)

    def versions(self, encoder: str) -> list[Version]:
        """The versions of an encoder, oldest first.

        :raises NotFound: no such encoder.
        """
        table = schema.versions
        query = sa.select(table).where(table.c.encoder == encoder).order_by(table.c.number)
        with self._db.read() as connection:
            found = [to_version(row) for row in connection.execute(query).mappings()]
        if not found:
            raise no_encoder(encoder)
        return found

    def version(self, encoder: str, number: int | None = None) -> Version:
        """One version of an encoder, the current one if no number is given.

        :raises NotFound: no such encoder or version.
        """
        with self._db.read() as connection:
            return current_version(connection, encoder) if number is None else _get_version(connection, encoder, number)

    def version_by_digest(self, digest: str, encoder: str | None = None) -> Version:
        """The newest version whose parameter set has this digest.

        :raises NotFound: there is none.
        """
        table = schema.versions
        query = sa.select(table).where(table.c.digest == digest).order_by(table.c.created.desc(), table.c.number.desc()).limit(1)
        if encoder is not None:
            query = query.where(table.c.encoder == encoder)
        with self._db.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise NotFound(
                f"a version with digest {digest!r} should be there, found none.", hint="See `trunkline encoder versions`."
            )
        return to_version(row)

    def publish_snapshot(self, encoder: str, digest: str, size: int, data: Mapping[str, Any]) -> Version:
        """Make a set that a stream came to the current version. Where it is so already, nothing is added.

        :param data: which stream, at which step, after how many samples of each task.
        :raises NotFound: no such encoder.
        :raises Conflict: a round of this encoder is open; its target would be built on another set.
        """
        with self._db.write() as connection:
            current = current_version(connection, encoder)
            if current.digest == digest:
                return current
            _no_open_round(connection, encoder)
            now = self._clock.now()
            row = {"digest": digest, "size": size, "kind": "snapshot", "created": now, "data": plain(data)}
            row |= {"parent": current.digest, "parent_number": current.number}
            _add_version(connection, encoder, current.number + 1, row)
            about = {"encoder": encoder, "version": current.number + 1, "digest": digest, **plain(data)}
            add_event(connection, now, "encoder.snapshot", data=about)
            return current_version(connection, encoder)

    def rollback(self, encoder: str, number: int) -> Version:
        """Make an old version the current one again, as a new version with the same digest; nothing is taken out of the lineage.

        :raises NotFound: no such encoder or version.
        :raises Conflict: a round of this encoder is open; its target would be built on what is rolled back.
        """
        with self._db.write() as connection:
            old, current = _get_version(connection, encoder, number), current_version(connection, encoder)
            _no_open_round(connection, encoder)
            now = self._clock.now()
            row = {
                "digest": old.digest,
                "size": old.size,
                "kind": "rollback",
                "parent": current.digest,
                "parent_number": current.number,
                "data": {"to": number},
                "created": now,
            }
            _add_version(connection, encoder, current.number + 1, row)
            add_event(
                connection, now, "encoder.rolled_back", data={"encoder": encoder, "to": number, "version": current.number + 1}
            )
            return _get_version(connection, encoder, current.number + 1)


def _find_encoder(connection: Connection, name: str) -> Encoder | None:
    row = connection.execute(sa.select(schema.encoders).where(schema.encoders.c.name == name)).mappings().first()
    return None if row is None else record(Encoder, row)


def _get_version(connection: Connection, encoder: str, number: int) -> Version:
    newest = current_version(connection, encoder).number
    table = schema.versions
    row = connection.execute(sa.select(table).where(table.c.encoder == encoder, table.c.number == number)).mappings().first()
    if row is None:
        raise NotFound(f"`version` of {encoder!r} should be 1 to {newest}, found {number}.")
    return to_version(row)


def _add_version(connection: Connection, encoder: str, number: int, values: Mapping[str, Any]) -> None:
    row = {"encoder": encoder, "number": number, "weights": {}, "data": {}} | dict(values)
    connection.execute(schema.versions.insert().values(row))


def _no_open_round(connection: Connection, encoder: str) -> None:
    jobs, rounds = schema.jobs, schema.rounds
    busy = (
        sa.select(rounds.c.job, rounds.c.number)
        .join(jobs, jobs.c.id == rounds.c.job)
        .where(jobs.c.encoder == encoder, jobs.c.state.in_(OPEN_JOBS), rounds.c.state.not_in(ENDED_ROUNDS))
    )
    row = connection.execute(busy).first()
    if row is not None:
        raise Conflict(
            f"encoder {encoder!r} should have no open round, found round {row.number} of job {row.job!r}.",
            hint="Pause or abort the job first.",
        )
