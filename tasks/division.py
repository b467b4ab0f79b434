"""Which tensors of a network are shared, which are private to a site, and which stay as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from tasks import lora, sources
from tasks.specs import EncoderSpec, Lora
from trunkline.errors import SpecError

NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, of any dimension
)


@dataclass(frozen=True, slots=True)
class Division:
    """Names of tensors; each stands in one of the four."""

    shared: tuple[str, ...]  # parameters
    buffers: tuple[str, ...]  # shared too, and nothing an optimiser moves
    private: tuple[str, ...]  # parameters and buffers
    frozen: tuple[str, ...]  # parameters


def divide(spec: EncoderSpec, body: nn.Module) -> Division:
    """Divide a network as its declaration says.

    :raises SpecError: a pattern matches nothing or two patterns the same, or nothing is left to share.
    """
    parameters, buffers = sources.tensors(body)
    _check("freeze", dict(zip(spec.freeze, spec.freeze_patterns(), strict=True)), parameters)
    private = _private(spec, body, {**parameters, **buffers})
    if isinstance(spec.tuning, Lora):
        moving = {f"{layer}.weight" for layer in lora.target_layers(spec, spec.tuning, body)}
    else:
        moving = {name for name in parameters if not spec.is_frozen(name)}
    both = sorted(name for name in private if name in parameters and (spec.is_frozen(name) or _product(spec, name, moving)))
    if both:
        raise SpecError(f"`private` should leave out what is frozen or trained as a product, found {both[0]!r}.")
    shared = tuple(name for name in parameters if name in moving and name not in private)
    if not shared:
        keys = "`freeze` and `private`" if spec.private else "`freeze`"
        raise SpecError(f"{keys} should leave something to share, found that every parameter is matched.")
    return Division(
        shared=shared,
        buffers=tuple(name for name in buffers if name not in private),
        private=tuple(name for name in (*parameters, *buffers) if name in private),
        frozen=tuple(name for name in parameters if name not in moving and name not in private),
    )


def _product(spec: EncoderSpec, name: str, moving: set[str]) -> bool:
    return isinstance(spec.tuning, Lora) and name in moving


def _private(spec: EncoderSpec, body: nn.Module, tensors: Mapping[str, object]) -> set[str]:
    """What the patterns name; the word `norms` means every tensor of a normalisation layer."""
    norms = {
        f"{where}.{name}" if where else name
        for where, part in body.named_modules()
        if isinstance(part, NORMS)
        for name in (*dict(part.named_parameters(recurse=False)), *dict(part.named_buffers(recurse=False)))
    }
    found: set[str] = set()
    for pattern in spec.private:
        matched = {name for name in tensors if (name in norms if pattern == "norms" else fnmatchcase(name, pattern))}
        if not matched:
            raise _nothing("private", pattern, tensors)
        found |= {name for name in matched if not (pattern == "norms" and spec.is_frozen(name))}
    return found


def _check(key: str, patterns: Mapping[str, str], names: Mapping[str, object]) -> None:
    for pattern, written in patterns.items():
        if not any(fnmatchcase(name, written) for name in names):
            raise _nothing(key, pattern, names)


def _nothing(key: str, pattern: str, names: Mapping[str, object]) -> SpecError:
    some = ", ".join(list(names)[:5])
    return SpecError(f"`{key}` should match parameters, found none for {pattern!r}; they read {some}, …")
