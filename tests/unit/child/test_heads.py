"""What is noted of a head; whether it is put back where it belongs is in `tests/flow/test_labels.py`."""

import json

import pytest

from child import heads
from child.heads import Outputs


@pytest.mark.parametrize("labels", [(), ("a", "b"), ("x|y", "z", ""), ("a:b", "single:")])
def test_a_note_says_what_the_outputs_mean_whatever_the_labels_are_called(labels: tuple[str, ...]) -> None:
    outputs = Outputs("single", labels)
    assert heads.noted(json.loads(json.dumps({"heads": {"mood": outputs.note()}}))) == {"mood": outputs}


def test_notes_of_the_first_release_are_read_still() -> None:
    notes = {"heads": {"mood": "single:bad|good", "price": "regression:"}}
    assert heads.noted(notes) == {"mood": Outputs("single", ("bad", "good")), "price": Outputs("regression", ())}
    assert heads.noted({}) == {}
