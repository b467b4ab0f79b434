"""The words all of Trunkline speaks: values, errors, named tensors, parameter sets, codecs, settings, clock."""

__version__ = "0.1.0"
