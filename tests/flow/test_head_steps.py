"""Heads that move alone: at the start of a round, and on what came out at last."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from master.jobs import JobSpec
from master.local import LocalLink
from tests.flow.test_oracles import SGD, fresh, local, world_of
from trunkline.errors import Reason
from trunkline.messages import Confirmation, Message, ReportRequest, Update

torch.set_num_threads(1)


def head_of(world: object, name: str) -> dict[str, np.ndarray]:
    tensors = world.children[name].store("tiny").newest().tensors  # type: ignore[attr-defined]
    return {key: np.array(value) for key, value in tensors.items() if key.startswith("sentiment/head/")}


def test_the_first_steps_of_a_round_leave_the_encoder_as_it_is(tmp_path: Path) -> None:
    """One step of five moves the encoder; a plain script of head steps and that one step comes to the same."""
    world = world_of(tmp_path, {"amy": 40}, batch_size=28)
    job = world.run(rounds=1, training={**SGD, "steps": 5, "head_steps": 4, "batch_size": 28})
    assert Update.of_table(job.pen.updates(1)[0].update).steps == 1
    encoder = fresh(world)
    task = local(world.children["amy"], encoder, world.children["amy"].registry.get("sentiment"))
    batch = task.table.batch(task.table.indices("train"))
    encoder.eval()
    for number in range(5):
        with torch.set_grad_enabled(number == 4):
            encoded = [encoder(side) for side in batch.inputs]
        task.head.loss(encoded, batch).backward()
        with torch.no_grad():
            for parameter in [*task.head.parameters(), *encoder.shared_parameters().values()]:
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    found = world.current()
    for name, parameter in encoder.shared_parameters().items():
        np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_heads_settle_on_the_last_target_once(tmp_path: Path) -> None:
    """Given a job that settles, When its last report is asked for twice, Then the heads were fitted once."""
    world = world_of(tmp_path, {"amy": 60, "ben": 80})
    plain = {**SGD, "steps": 4}
    asked: list[ReportRequest] = []

    class Twice(LocalLink):
        def _ask(self, name: str, outgoing: object) -> object:  # type: ignore[override]
            message = outgoing.message  # type: ignore[attr-defined]
            if isinstance(message, ReportRequest) and message.settle is not None:
                asked.append(message)
                first = super()._ask(name, outgoing)  # type: ignore[arg-type]
                heads = head_of(world, name)
                second = super()._ask(name, outgoing)  # type: ignore[arg-type]
                assert {key: value.tobytes() for key, value in head_of(world, name).items()} == {
                    key: value.tobytes() for key, value in heads.items()
                }
                assert first[0].scores == second[0].scores  # type: ignore[union-attr]
                return second
            return super()._ask(name, outgoing)  # type: ignore[arg-type]

    job = world.run(Twice(world.children, debug=True), rounds=2, training={**plain, "settle_steps": 6})
    assert len(asked) == 2
    assert {score["split"] for row in job.pen.reports(2) for score in row.report["scores"]} == {"validation", "test"}
    target = world.digest()

    folder = tmp_path / "plain"
    folder.mkdir()
    other = world_of(folder, {"amy": 60, "ben": 80})
    other.run(rounds=2, training=plain)
    assert other.digest() == target, "the encoder is the same"
    assert any(not np.array_equal(head_of(world, "amy")[key], value) for key, value in head_of(other, "amy").items())


def test_an_older_child_is_left_out_of_a_job_with_head_steps(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"amy": 40, "ben": 60})

    class Older(LocalLink):
        def _ask(self, name: str, outgoing: object) -> tuple[Message, bytes | None]:  # type: ignore[override]
            answer, more = super()._ask(name, outgoing)  # type: ignore[arg-type]
            if name == "ben" and isinstance(answer, Confirmation):
                answer = answer.model_copy(update={"speaks": (1, 1)})
            return answer, more

    job = world.run(Older(world.children, debug=True), rounds=1, training={**SGD, "steps": 2, "head_steps": 1})
    assert [(one.child, one.reason) for one in job.pen.members(1) if one.state == "refused"] == [("ben", Reason.WIRE)]


def test_a_round_of_heads_alone_is_refused() -> None:
    with pytest.raises(ValidationError, match="`head_steps` should be fewer than `steps`"):
        JobSpec.model_validate({"encoder": "a", "training": {"steps": 4, "head_steps": 4}})


def test_heads_settle_also_where_nothing_is_reported(tmp_path: Path) -> None:
    """Neither the job nor the site wants scores: the heads that stay at the site should fit all the same."""
    world = world_of(tmp_path, {"amy": 60})
    amy = world.children["amy"]
    quiet = amy.settings.model_copy(update={"policy": amy.settings.policy.model_copy(update={"report": False})})
    amy.configure(quiet)
    job = world.run(rounds=1, training={**SGD, "steps": 4, "settle_steps": 6}, report=(), final_report=())
    assert [row.report["scores"] for row in job.pen.reports(1)] == [[]]
    assert amy.store("tiny").sent((job.id, 1, world.digest())) == {"settled": world.digest()}
