"""What a site sets is checked when it is read: no wait is zero, negative or without end (T-32)."""

import pytest

from child.settings import load
from master.jobs import Children, JobSpec, Stop
from trunkline.errors import SettingsError
from trunkline.settings import build

CHILD = ("heartbeat", "poll", "idle_poll", "away", "batch_lease")
JOB = tuple(name for name in Children.model_fields if name.endswith("_seconds"))
WRONG = [0, -1, -0.001, float("inf"), float("nan"), "soon"]


@pytest.mark.parametrize("name", CHILD)
@pytest.mark.parametrize("value", WRONG)
def test_no_interval_of_a_child_is_zero_negative_or_endless(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"`{name}`"):
        load(None, {name: value}, {})


@pytest.mark.parametrize("value", [9.9, 1801.0])
def test_the_heartbeat_is_one_that_flower_allows(value: float) -> None:
    with pytest.raises(SettingsError, match=r"`heartbeat`.*(10|1800)"):
        load(None, {"heartbeat": value}, {})


@pytest.mark.parametrize("name", JOB)
@pytest.mark.parametrize("value", WRONG)
def test_no_wait_of_a_job_is_zero_negative_or_endless(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"`children.{name}`"):
        build(JobSpec, {"encoder": "e", "children": {name: value}}, "the job")


@pytest.mark.parametrize("value", WRONG)
def test_nor_is_the_length_of_a_job(value: object) -> None:
    assert "seconds" in Stop.model_fields
    with pytest.raises(SettingsError, match=r"`stop\.seconds`"):
        build(JobSpec, {"encoder": "e", "stop": {"seconds": value}}, "the job")
