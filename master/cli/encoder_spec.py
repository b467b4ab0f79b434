"""From the flags of `encoder create`, or its file, to an EncoderSpec."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from master.cli.job_flags import put
from trunkline.errors import UsageError
from trunkline.toml import read_toml, value_of

if TYPE_CHECKING:
    from tasks.specs import EncoderSpec


@dataclass(frozen=True)
class Wanted:
    """What was said on the command line; None and empty: nothing."""

    name: str
    file: Path | None = None
    type: str | None = None
    pretrained: str | None = None
    revision: str | None = None
    config: str | None = None
    options: tuple[str, ...] = ()
    tokenizer: str | None = None
    seed: int | None = None
    seeded: bool = False
    module: str | None = None
    shape: str | None = None
    layers: int | None = None
    freeze: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    pooling: str | None = None
    max_length: int | None = None
    dropout: float | None = None
    lora: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ()


def spec_of(wanted: Wanted) -> "EncoderSpec":
    """The declaration, checked.

    :raises UsageError, SettingsError: names the flag or key, what should be and what was found.
    """
    from tasks.specs import EncoderSpec
    from trunkline.settings import build

    table = read_toml(wanted.file) if wanted.file is not None else {}
    table["name"] = wanted.name
    source = _source(wanted)
    if source is not None:
        table["source"] = source
    if "source" not in table:
        raise UsageError(
            "`encoder create` should be told what to start from, found nothing.",
            hint="Say --from FOLDER_OR_HUB_NAME, or --config with --option and --seed, or --module FILE.py:NAME.",
        )
    if wanted.seeded:
        _seeded(table["source"])
    plain = ("type", "layers", "pooling", "max_length", "dropout")
    table |= {key: value for key in plain if (value := getattr(wanted, key)) is not None}
    if wanted.freeze:
        table["freeze"] = list(wanted.freeze)
    if wanted.private:
        table["private"] = list(wanted.private)
    if wanted.shape is not None:
        table["shape"] = _shape(wanted.shape)
    if wanted.lora is not None:
        table["tuning"] = _lora(wanted)
    elif wanted.lora_alpha is not None or wanted.lora_targets:
        raise UsageError("`--lora-alpha` and `--lora-target` should come with `--lora RANK`, found none.")
    return build(EncoderSpec, table, f"`{wanted.file}`" if wanted.file is not None else "the encoder")


def _seeded(source: Any) -> None:
    if not isinstance(source, dict) or source.get("kind") == "pretrained":
        raise UsageError("`--seeded` should come with --config or --module, found weights that are there already.")
    source["init"] = "seeded"


def _source(wanted: Wanted) -> dict[str, Any] | None:
    said = {"--from": wanted.pretrained is not None, "--module": wanted.module is not None}
    said["--config"] = wanted.config is not None or (bool(wanted.options) and not said["--module"])
    chosen = [flag for flag, given in said.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"an encoder should start from one thing, found {' and '.join(chosen)}.")
    if not chosen:
        return None
    if chosen == ["--from"]:
        return _only({"kind": "pretrained", "path": wanted.pretrained, "revision": wanted.revision})
    options: dict[str, Any] = {}
    for text in wanted.options:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"`--option` should be KEY=VALUE, such as hidden_size=128, found {text!r}.")
        put(options, key, value_of(value))
    if chosen == ["--module"]:
        return _only({"kind": "module", "path": wanted.module, "options": options, "seed": wanted.seed})
    config = {"kind": "config", "path": wanted.config, "options": options, "seed": wanted.seed, "tokenizer": wanted.tokenizer}
    return _only(config)


def _only(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _shape(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        raise UsageError(f"`--shape` should be numbers such as 384 or 3x32x32, found {text!r}.") from None


def _lora(wanted: Wanted) -> dict[str, Any]:
    targets = list(wanted.lora_targets) or None
    return _only({"rank": wanted.lora, "alpha": wanted.lora_alpha, "targets": targets, "seed": wanted.seed})
