"""The former name of `trunkline.codecs`."""

from trunkline.codecs import CODECS, Decoder, Read, encode, wire_spec

__all__ = ["CODECS", "Decoder", "Read", "encode", "wire_spec"]
