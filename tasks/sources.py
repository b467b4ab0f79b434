"""Where an encoder's network comes from: Hugging Face weights, a config and a seed, or a user's module. Foreign errors end here.

The only module that asks `transformers` for models and `huggingface_hub` for files. Weights are safetensors, code of a model's
folder is never run, and a hub that does not answer ends in an error, never in a wait.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks import plugins
from tasks.declared import FILES
from tasks.specs import Config, EncoderSpec, Module, Options, Pretrained
from trunkline.errors import SpecError
from trunkline.tensors import TensorSpec

_HUB_SECONDS = 10.0


def network(spec: EncoderSpec, modules: Sequence[Path] = ()) -> tuple[nn.Module, Any, Path | None]:
    """The network with its first weights, its Hugging Face config (None for a module), and the folder of its tokenizer.

    :raises SpecError: it cannot be made as it is declared.
    """
    source = spec.source
    if isinstance(source, Module):
        return user_module(spec, source, modules), None, None
    if isinstance(source, Pretrained):
        folder = find_folder(source.path, source.revision)
        config = _checked(spec, read_config(folder))
        return _pretrained(folder, config), config, folder
    folder = find_folder(source.path) if source.path is not None else None
    config = _checked(spec, _config(source, folder))
    tokenizer = find_folder(source.tokenizer) if source.tokenizer is not None else folder
    return from_config(config, source.seed), config, tokenizer


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def find_folder(path: str, revision: str | None = None) -> Path:
    """A local folder as it is, a hub name by way of the hub's cache.

    :raises SpecError: no such folder, or the hub does not have it or cannot be reached.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or local.exists():
        raise SpecError(f"`{path}` should be a folder with a model, found {'a file' if local.exists() else 'none'}.")
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=list(FILES), etag_timeout=_HUB_SECONDS))
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise SpecError(
            f"`{path}` should be a folder here or a model at the hub, found neither: {said}.",
            hint="Without a network, name a local folder or a model that the hub's cache holds.",
        ) from error


def read_config(folder: Path, options: Options | None = None) -> Any:
    """:raises SpecError: no config.json, or of a kind that `transformers` does not know."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise SpecError(f"`{folder}` should be a folder with a model, found no config.json.")
    with _hugging_face(folder):
        return AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **(options or {}))


def _config(source: Config, folder: Path | None) -> Any:
    from transformers import AutoConfig

    if folder is not None:
        return read_config(folder, source.options)
    with _hugging_face(source.options.get("model_type")):
        return AutoConfig.for_model(**source.options)  # type: ignore[arg-type]


def _checked(spec: EncoderSpec, config: Any) -> Any:
    """The config as this encoder needs it: its layers, its dropout, float32."""
    if getattr(config, "is_encoder_decoder", False):
        raise SpecError(f"`source` should be an encoder, found an encoder with a decoder ({config.model_type}).")
    if spec.layers is not None:
        if spec.layers > config.num_hidden_layers:
            raise SpecError(f"`layers` should be at most {config.num_hidden_layers}, which is what it has, found {spec.layers}.")
        config.num_hidden_layers = spec.layers
        kinds = getattr(config, "layer_types", None)
        if kinds:
            config.layer_types = list(kinds)[: spec.layers]
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < spec.max_length:
        raise SpecError(f"`max_length` should be at most {limit}, the positions it knows, found {spec.max_length}.")
    if spec.dropout is not None:
        for key, value in config.to_dict().items():
            if "dropout" in key and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(config, key, spec.dropout)
    if hasattr(config, "auto_map"):
        del config.auto_map
    config.dtype = torch.float32
    return config


def from_config(config: Any, seed: int = 0) -> nn.Module:
    """A network whose weights follow from the seed alone.

    :raises SpecError: the config makes none.
    """
    from transformers import AutoModel

    with _hugging_face(config.model_type), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _bare(AutoModel.from_config(config, trust_remote_code=False, dtype=torch.float32))


def _pretrained(folder: Path, config: Any) -> nn.Module:
    from transformers import AutoModel

    if not any(folder.glob("*.safetensors")):
        others = [file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack") for file in sorted(folder.glob(pattern))]
        raise SpecError(
            f"`{folder}` should hold weights as safetensors, found {', '.join(others) or 'no weights'}.",
            hint="Other kinds can run code when they are read; convert it once with `save_pretrained` where you trust it."
            if others
            else None,
        )
    with _hugging_face(folder), torch.random.fork_rng(devices=[]):
        model, told = AutoModel.from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    missing = sorted(name for name in told["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise SpecError(f"`{folder}` should hold every weight of {config.model_type}, found none for {', '.join(missing[:5])}.")
    return _bare(model)


def _bare(model: nn.Module) -> nn.Module:
    """Without the pooler on top, which no task here uses: it would never be trained and yet travel."""
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None  # type: ignore[assignment]
    return model.float()


@contextmanager
def _hugging_face(what: object) -> Iterator[None]:
    """Quiet, and with its errors told as ours."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except StrictDataclassError as error:  # whose first line names the key, and whose second says what is wrong
        said = " ".join(str(error).split()).rstrip(". ")
        raise SpecError(f"`{what}` should make an encoder, found: {said}") from error
    except (
        OSError,
        ValueError,
        LookupError,
        ArithmeticError,
        TypeError,
        AttributeError,
        RuntimeError,
        ImportError,
        SafetensorError,
    ) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise SpecError(f"`{what}` should make an encoder, found: {said}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# -- a user's own module -----------------------------------------------------------------------------------------------


def user_module(spec: EncoderSpec, source: Module, modules: Sequence[Path]) -> nn.Module:
    """A user's network, with the weights that follow from the seed.

    :raises SpecError: its file is in none of the folders, or does not make a `torch.nn.Module`.
    """
    kind = plugins.load(source.path, modules, "trunkline.encoders", anywhere=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source.seed)
        try:
            body = kind(**source.options)
        except Exception as error:
            raise SpecError(f"`{source.path}` should take the options {dict(source.options)}, found: {error}.") from error
    if not isinstance(body, nn.Module):
        raise SpecError(f"`{source.path}` should make a torch.nn.Module, found {type(body).__name__}.")
    if spec.dropout is not None:
        for part in body.modules():
            if isinstance(part, nn.Dropout):
                part.p = spec.dropout
    return body.float()


def width(spec: EncoderSpec, body: nn.Module) -> int:
    """The hidden size of a user's module: its attribute `hidden`, or what it makes of zeros.

    :raises SpecError: it does not answer `(B, hidden)`.
    """
    told = getattr(body, "hidden", None)
    if isinstance(told, int):
        return told
    training = body.training
    body.eval()
    try:
        with torch.no_grad():
            answer = body(torch.zeros(2, *(spec.shape or ())))
    except Exception as error:
        raise SpecError(f"`{spec.name}` should read features of the shape {spec.shape}, found: {error}.") from error
    finally:
        body.train(training)
    if not isinstance(answer, torch.Tensor) or answer.ndim != 2 or answer.shape[0] != 2:
        found = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise SpecError(f"`{spec.name}` should answer (B, hidden), found {found} for B = 2.")
    return int(answer.shape[1])


_KINDS = {
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """Shape and dtype, as a parameter set has them.

    :raises SpecError: no parameter set holds such a dtype.
    """
    if tensor.dtype not in _KINDS:
        raise SpecError(f"a tensor's dtype should be one of {', '.join(map(str, _KINDS))}, found {tensor.dtype}.")
    return TensorSpec(tuple(tensor.shape), _KINDS[tensor.dtype])


def tensors(body: nn.Module) -> tuple[dict[str, nn.Parameter], Mapping[str, torch.Tensor]]:
    """Parameters (tied ones once) and the buffers that are part of a checkpoint, by name."""
    stored = body.state_dict()
    return dict(body.named_parameters()), {name: buffer for name, buffer in body.named_buffers() if name in stored}
