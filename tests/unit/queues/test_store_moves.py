"""A store moves parameters to the very bits that `torch.optim` comes to."""

import pytest

from queues.store.memory import MemoryStore
from tests.support import plain_optim
from tests.support.plain_optim import PlainStore, parameters, same, spec_of, stream

LEARNING = {
    "adamw": {},
    "no-clipping": {"clip_norm": 0.0},
    "large-norm": {"clip_norm": 1e9},
    "decay": {"decay": "linear", "total_steps": 10},
    "beta1": {"beta1": 0.5, "weight_decay": 0.3},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1},
}


@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("learning", LEARNING.values(), ids=LEARNING)
def test_a_store_is_a_plain_loop_bit_for_bit(learning: dict[str, object], rows: bool) -> None:
    spec, start = spec_of(learning), parameters()
    store, plain = MemoryStore(spec, start), PlainStore(spec, start)
    for gradient in stream(12, rows=rows):
        assert store.apply((gradient,)) == plain.apply((gradient,))
        step, found = plain_optim.read(store.reader())
        assert same(found, plain.values()), step
