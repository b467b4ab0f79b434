"""Which codecs there are."""

from collections.abc import Mapping
from types import MappingProxyType

from trunkline.choices import parse
from trunkline.codecs.bf16 import Bf16
from trunkline.codecs.codec import Codec
from trunkline.codecs.float32 import Float32
from trunkline.codecs.int4 import Int4
from trunkline.codecs.int8 import Int8
from trunkline.codecs.lowrank import Lowrank
from trunkline.codecs.topk import Topk

CODECS: Mapping[str, type[Codec]] = MappingProxyType({kind.name: kind for kind in (Float32, Bf16, Int8, Int4, Topk, Lowrank)})
"""By name."""


def find(word: str) -> Codec:
    """The codec that a word such as `topk:share=0.01` names.

    :raises SpecError: no such codec, or no such option.
    """
    return parse(word, CODECS, "codec")
