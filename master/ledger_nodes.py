"""The ledger's part on children: invitations, enrolled nodes, and what they asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from master import schema
from master.ledger_base import Part, add_event, record, text
from master.records import ChildRequest, Node
from master.states import NodeState
from trunkline.errors import Conflict, NotAuthorized, NotFound

_SETTABLE = {"flower_id", "boot", "machine", "tasks", "state", "seen", "labels", "public_key", "token_hash"}


class NodePart(Part):
    """Invitations, nodes and requests."""

    def add_invite(self, token_hash: str, name: str | None, expires: float) -> None:
        """Keep the hash of a one-time token.

        :param name: the node it is for; None: any name.
        :param expires: seconds since the epoch.
        """
        with self._db.write() as connection:
            now = self._clock.now()
            connection.execute(schema.invites.insert().values(hash=token_hash, name=name, created=now, expires=expires))
            add_event(connection, now, "node.invited", child=name)

    def use_invite(self, token_hash: str, now: float) -> str | None:
        """Use a one-time token up, and return the name it is for (None: any).

        :raises NotAuthorized: no such token, used already, or expired.
        """
        table = schema.invites
        with self._db.write() as connection:
            row = connection.execute(sa.select(table).where(table.c.hash == token_hash)).first()
            if row is None or row.used is not None or now >= row.expires:
                found = "an unknown one" if row is None else "one used already" if row.used is not None else "an expired one"
                raise NotAuthorized(
                    f"the invitation should be new, found {found}.", hint="Ask for a new one: `trunkline node invite`."
                )
            connection.execute(table.update().where(table.c.hash == token_hash).values(used=now))
            return row.name

    def add_node(
        self,
        name: str,
        public_key: bytes,
        token_hash: str,
        *,
        machine: Mapping[str, Any] | None = None,
        tasks: Sequence[Any] = (),
        speaks: tuple[int, int] = (1, 1),
        labels: Mapping[str, str] | None = None,
        state: NodeState = "active",
    ) -> Node:
        """Enrol a child.

        :param public_key: as it is registered at the transport.
        :param token_hash: hash of the token that it shows to the HTTPS API.
        :raises Conflict: a node of that name, or with that token, is there.
        """
        table = schema.nodes
        row = {"name": name, "public_key": public_key, "token_hash": token_hash, "machine": dict(machine or {}), "state": state}
        row |= {"tasks": list(tasks), "labels": dict(labels or {}), "oldest": speaks[0], "newest": speaks[1]}
        with self._db.write() as connection:
            taken = sa.or_(table.c.name == name, table.c.token_hash == token_hash)
            if connection.execute(sa.select(table.c.name).where(taken)).first() is not None:
                raise Conflict(
                    f"node {name!r} should be new, found one of that name or token.",
                    hint="Choose another name, or remove the old one.",
                )
            connection.execute(table.insert().values(row | {"created": self._clock.now()}))
            add_event(connection, self._clock.now(), "node.enrolled", child=name)
            return _node(connection.execute(sa.select(table).where(table.c.name == name)).mappings().one())

    def node(self, name: str) -> Node:
        """:raises NotFound: no such node."""
        found = self._nodes(schema.nodes.c.name == name)
        if not found:
            raise NotFound(f"`node` should be the name of a node, found {name!r}.", hint="See `trunkline node list`.")
        return found[0]

    def nodes(self) -> list[Node]:
        """All nodes, by name."""
        return self._nodes()

    def node_by_token_hash(self, token_hash: str) -> Node | None:
        """The node that shows this token, or None."""
        found = self._nodes(schema.nodes.c.token_hash == token_hash)
        return found[0] if found else None

    def _nodes(self, *conditions: Any) -> list[Node]:
        with self._db.read() as connection:
            rows = connection.execute(sa.select(schema.nodes).where(*conditions)).mappings().all()
        return sorted((_node(row) for row in rows), key=lambda node: node.name)

    def set_node(self, name: str, *, speaks: tuple[int, int] | None = None, **values: Any) -> Node:
        """Change what is known of a node: flower_id, boot, machine, tasks, speaks, state, seen, labels, public_key, token_hash.

        :raises NotFound: no such node.
        :raises Conflict: it is revoked, which is for ever; or the token belongs to another node.
        """
        unknown = sorted(set(values) - _SETTABLE)
        if unknown:
            raise TypeError(f"set_node() takes no {', '.join(unknown)}")
        if values.get("flower_id") is not None:
            values["flower_id"] = str(values["flower_id"])
        if values.get("boot") is not None:
            values["boot"] = text(str(values["boot"]))[:64]
        if speaks is not None:
            values |= {"oldest": speaks[0], "newest": speaks[1]}
        table = schema.nodes
        with self._db.write() as connection:
            row = connection.execute(sa.select(table).where(table.c.name == name)).mappings().first()
            if row is None:
                raise NotFound(f"`node` should be the name of a node, found {name!r}.", hint="See `trunkline node list`.")
            state = values.get("state", row["state"])
            if row["state"] == "revoked" and state != "revoked":
                raise Conflict(
                    f"node {name!r} should not be revoked to become {state}.", hint="Invite it again under another name."
                )
            if values:
                connection.execute(table.update().where(table.c.name == name).values(values))
            if state != row["state"]:
                add_event(connection, self._clock.now(), f"node.{state}", child=name)
            return _node(connection.execute(sa.select(table).where(table.c.name == name)).mappings().one())

    def add_request(
        self,
        child: str,
        *,
        encoder: str | None = None,
        type: str | None = None,
        tasks: Sequence[str] = (),
        at: float | None = None,
    ) -> ChildRequest:
        """Note that a child asks for training; asking again while it is open changes nothing."""
        table = schema.requests
        wanted = sorted(tasks)
        same = sa.and_(
            table.c.child == child,
            table.c.job.is_(None),
            *(
                column.is_(None) if value is None else column == value
                for column, value in ((table.c.encoder, encoder), (table.c.type, type))
            ),
        )
        with self._db.write() as connection:
            for row in connection.execute(sa.select(table).where(same)).mappings():
                if row["tasks"] == wanted:
                    return _request(row)
            now = self._clock.now() if at is None else at
            values = {"child": child, "encoder": encoder, "type": type, "tasks": wanted, "at": now}
            key = connection.execute(table.insert().values(values)).inserted_primary_key
            assert key is not None
            add_event(connection, now, "request", child=child, data={"encoder": encoder, "type": type, "tasks": wanted})
            return _request(connection.execute(sa.select(table).where(table.c.id == key[0])).mappings().one())

    def open_requests(self) -> list[ChildRequest]:
        """Requests that no job answers yet, oldest first."""
        table = schema.requests
        query = sa.select(table).where(table.c.job.is_(None)).order_by(table.c.id)
        with self._db.read() as connection:
            return [_request(row) for row in connection.execute(query).mappings()]

    def attach_request(self, request_id: int, job: str) -> None:
        """Say which job answers a request.

        :raises NotFound: no such request.
        :raises Conflict: another job answers it.
        """
        table = schema.requests
        with self._db.write() as connection:
            row = connection.execute(sa.select(table.c.job, table.c.child).where(table.c.id == request_id)).first()
            if row is None:
                raise NotFound(f"request {request_id} should be there, found none.")
            if row.job == job:
                return
            if row.job is not None:
                raise Conflict(f"request {request_id} should be open, found job {row.job!r} on it.")
            connection.execute(table.update().where(table.c.id == request_id).values(job=job))
            add_event(connection, self._clock.now(), "request.attached", job=job, child=row.child, data={"request": request_id})


def _node(row: RowMapping) -> Node:
    flower_id = None if row["flower_id"] is None else int(row["flower_id"])
    return record(Node, row, flower_id=flower_id, public_key=bytes(row["public_key"]), speaks=(row["oldest"], row["newest"]))


def _request(row: RowMapping) -> ChildRequest:
    return record(ChildRequest, row, tasks=tuple(row["tasks"]))
