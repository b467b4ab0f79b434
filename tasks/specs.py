"""What an encoder and a task are declared to be: frozen values, read from TOML or JSON, with neither torch nor samples in sight."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trunkline.values import Finite, Name, Value

Texts = Annotated[tuple[str, ...], Field(strict=False)]
"""Strings in a fixed order; TOML and JSON write them as a list."""

Positive = Annotated[int, Field(ge=1, le=2**31)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Options = dict[str, bool | int | float | str | list[int] | list[float] | list[str] | None]
"""Keys of a Hugging Face config, or keyword arguments of a user's module."""

Head = Literal["single", "multi", "regression", "tokens", "pairs"]

METRICS = {
    "single": ("accuracy", "f1"),
    "multi": ("f1", "accuracy"),
    "regression": ("pearson", "spearman", "mse"),
    "tokens": ("accuracy", "f1"),
    "pairs": ("recall@1", "recall@5", "recall@10"),
}
"""What each head can be measured by, its default first."""

_ENDINGS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}


class Spec(Value):
    """A value that a person writes into a file."""

    def table(self) -> dict[str, Any]:
        """As TOML and JSON have it; what is not set is left out."""
        return self.model_dump(mode="json", exclude_none=True)


# -- encoders ----------------------------------------------------------------------------------------------------------


class Pretrained(Value):
    """Weights of a Hugging Face encoder: a local folder, or a name at the hub."""

    kind: Literal["pretrained"] = "pretrained"
    path: Annotated[str, Field(min_length=1)]
    revision: str | None = None  # of the hub; None: its main one


Init = Literal["library", "seeded"]
"""Who draws the first parameters: the library, so that they travel; or `tasks.seeded`, so that each site makes its own copy."""


class Config(Value):
    """A Hugging Face encoder that starts from a seed: a config by path, by options (`model_type = "bert"`, …), or both."""

    kind: Literal["config"] = "config"
    path: str | None = None  # a folder or hub name with config.json; None: the options say it all
    options: Options = Field(default_factory=dict)
    seed: Seed = 0
    init: Init = "library"
    tokenizer: str | None = None  # a folder or hub name; None: the same as `path`


class Module(Value):
    """A user's own `torch.nn.Module` for what is not text: called with features `(B, *shape)`, it answers `(B, hidden)`."""

    kind: Literal["module"] = "module"
    path: Annotated[str, Field(min_length=1)]  # "file.py:Name", or the name of an entry point of the group `trunkline.encoders`
    options: Options = Field(default_factory=dict)  # keyword arguments of `Name`
    seed: Seed = 0
    init: Init = "library"


class Lora(Value):
    """Training by low-rank products: the matrix moves by `alpha / rank * B A`; what is shared and fused is the matrix."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    targets: Texts = ("*query", "*value")  # patterns on the names of linear layers
    dropout: Share = 0.0
    seed: Seed = 0  # A starts normal from this seed, B at zero, in every round


class EncoderSpec(Spec):
    """One shared encoder, as its admin declares it."""

    name: Name
    type: Name = "text"  # what it reads; children choose their tasks by it
    source: Annotated[Pretrained | Config | Module, Field(discriminator="kind")]
    layers: Positive | None = None  # keep the first N; None: all
    freeze: Texts = ()  # patterns on parameter names; "embeddings" means all of them
    private: Texts = ()  # patterns on tensors that each site trains and keeps for itself; "norms": all of normalisation layers
    pooling: Literal["mean", "cls", "max"] = "mean"
    max_length: Positive = 128  # tokens
    tuning: Literal["full"] | Lora = "full"
    dropout: Share | None = None  # None: as the encoder's own config says
    shape: Annotated[tuple[Positive, ...], Field(strict=False)] | None = None  # of one sample's features, for a module

    @property
    def features(self) -> Literal["text", "vector"]:
        """What the samples of its tasks are turned into."""
        return "vector" if self.source.kind == "module" else "text"

    def is_frozen(self, name: str) -> bool:
        """Whether a parameter of this name is left as it is."""
        return any(fnmatchcase(name, pattern) for pattern in self.freeze_patterns())

    def freeze_patterns(self) -> tuple[str, ...]:
        """`freeze` with the friendly word written out."""
        return tuple("*embeddings.*" if pattern == "embeddings" else pattern for pattern in self.freeze)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.source.kind == "module":
            if not self.shape:
                raise ValueError("`shape` should be the shape of one sample's features, found none")
            if self.layers is not None:
                raise ValueError("`layers` should be left out for a module, which knows its own")
        elif self.shape is not None:
            raise ValueError("`shape` should be left out for a text encoder")
        if isinstance(self.source, Config) and self.source.path is None and "model_type" not in self.source.options:
            raise ValueError("`source.options.model_type` should name a kind of model where `source.path` is not set")
        return self


# -- tasks -------------------------------------------------------------------------------------------------------------


class TaskSpec(Spec):
    """One task, as its site declares it. It stays there; the master learns name, head, metric and counts."""

    name: Name
    encoder: Name = "text"  # the encoder *type* that its samples suit
    head: Head
    data: Annotated[str, Field(min_length=1)]  # a file, or a Hugging Face `datasets` folder
    format: Literal["csv", "tsv", "jsonl", "parquet", "datasets"] | None = None  # None: by the ending of `data`
    encoding: str = "utf-8"
    fields: Annotated[Texts, Field(min_length=1)]  # columns of the input; for pairs the two sides; for tokens the list of them
    label: str | None = None  # column; none for pairs
    labels: Texts | None = None  # all label names in a fixed order; None: those found in the file, sorted
    separator: Annotated[str, Field(min_length=1)] = "|"  # between the labels of a multi-label column
    split: str | None = None  # column that says train, validation or test; None: the column `split` if there is one
    fractions: Annotated[tuple[Share, Share, Share], Field(strict=False)] | None = None  # split by seed instead of by column
    seed: Seed = 0  # of the split and of `rows`
    rows: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None  # share of the training rows taken
    max_length: Positive | None = None  # tokens; None: the encoder's
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    weight: Annotated[Finite, Field(gt=0)] = 1.0  # factor on this task's gradients
    metric: str | None = None  # None: the head's default
    reader: str | None = None  # a user's own, "path.py:name": called with (path, spec), yields one mapping a row
    custom_head: str | None = None  # a user's own, "path.py:name": called with (spec, labels, hidden)

    @property
    def measure(self) -> str:
        """The metric it is judged by."""
        return self.metric or METRICS[self.head][0]

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return self.measure != "mse"

    @property
    def sides(self) -> tuple[slice, ...]:
        """The fields of each side of a sample: two for pairs."""
        return (slice(0, 1), slice(1, 2)) if self.head == "pairs" else (slice(0, len(self.fields)),)

    def source(self, base: Path) -> Path:
        """Where the samples lie; `data` is relative to `base`."""
        return base / Path(self.data).expanduser()

    def form(self, base: Path) -> str | None:
        """The format given, or the one the ending tells; None: it tells nothing."""
        if self.format is not None:
            return self.format
        path = self.source(base)
        return "datasets" if path.is_dir() else _ENDINGS.get(path.suffix.lower())

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.head == "pairs":
            if len(self.fields) != 2:
                raise ValueError(f"`fields` should be two columns for pairs, found {len(self.fields)}")
            if self.label is not None or self.labels is not None:
                raise ValueError("`label` and `labels` should be left out for pairs: the second field is the answer to the first")
        elif self.label is None:
            raise ValueError(f"`label` should name the column of the labels for head {self.head!r}, found none")
        columns = [*self.fields, self.label]
        if self.head != "pairs" and len(set(columns)) != len(columns):  # a pair may be one text twice, with other dropout
            raise ValueError(f"`fields` and `label` should be different columns, found {', '.join(map(str, columns))}")
        if self.head == "tokens" and len(self.fields) != 1:
            raise ValueError(f"`fields` should be one column that holds a list of tokens, found {len(self.fields)}")
        if self.head == "regression" and self.labels is not None:
            raise ValueError("`labels` should be left out for regression")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError("`labels` should be different from each other")
        if self.labels is not None and len(self.labels) < (1 if self.head == "multi" else 2):
            raise ValueError(f"`labels` should be at least {1 if self.head == 'multi' else 2}, found {len(self.labels)}")
        if self.metric is not None and self.custom_head is None and self.metric not in METRICS[self.head]:
            raise ValueError(f"`metric` should be one of {', '.join(METRICS[self.head])} for head {self.head!r}")
        if self.fractions is not None:
            if self.split is not None:
                raise ValueError("`fractions` should be left out where `split` names a column")
            if abs(sum(self.fractions) - 1.0) > 1e-6:
                raise ValueError(f"`fractions` should sum to 1, found {sum(self.fractions):g}")
        return self
