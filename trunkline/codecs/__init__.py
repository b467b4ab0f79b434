"""How a parameter set travels: one codec a file, found by name and options in one word, `topk:share=0.01`.

What a file decodes to *is* the set (`base + (new - base)` is not `new` in float32, so digests are compared after decoding,
never before). Integers and booleans travel as they are, and so does what a codec would not make smaller. In every codec, a matrix
that was trained by a low-rank product travels as its two factors.
"""

from trunkline.codecs.codec import Codec, Owed, Read, Sliced, Write
from trunkline.codecs.decoder import Decoder
from trunkline.codecs.encoding import encode, owed_spec
from trunkline.codecs.form import wire_spec
from trunkline.codecs.product import multiplied
from trunkline.codecs.reach import Reach
from trunkline.codecs.registry import CODECS, find

__all__ = [
    "CODECS",
    "Codec",
    "Decoder",
    "Owed",
    "Reach",
    "Read",
    "Sliced",
    "Write",
    "encode",
    "find",
    "multiplied",
    "owed_spec",
    "wire_spec",
]
