"""The states of jobs, rounds, members and nodes, in the words of the ledger. No pydantic: every command starts with them."""

from typing import Literal

JobState = Literal["waiting", "running", "paused", "finished", "failed", "aborted"]
RoundState = Literal["instructing", "training", "fusing", "reporting", "closed", "skipped"]
MemberState = Literal["confirmed", "refused", "member", "left_out"]
NodeState = Literal["active", "disabled", "revoked"]

OPEN_JOBS: tuple[JobState, ...] = ("waiting", "running", "paused")
ENDED_JOBS: tuple[JobState, ...] = ("finished", "failed", "aborted")
ENDED_ROUNDS: tuple[RoundState, ...] = ("closed", "skipped")
