"""From a sample's fields to numbers: text by the encoder's tokenizer, vectors by their shape."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.samples import Row, words, wrong
from tasks.specs import TaskSpec
from trunkline.errors import SpecError
from trunkline.files import sha256_file


class TextProcessor:
    """Tokenises with the tokenizer files of an encoder's folder; nothing is fetched, no code of the folder is run.

    :param max_length: tokens, special ones included.
    """

    def __init__(self, folder: Path, max_length: int) -> None:
        from transformers import AutoTokenizer

        self.max_length = max_length
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise SpecError(f"`{folder}` should hold the files of a tokenizer, found: {error}.") from None
        if not getattr(self.tokenizer, "is_fast", False):
            raise SpecError(f"`{folder}` should hold tokenizer.json, found only a slow tokenizer.")
        if set(self.tokenizer.get_vocab()) <= set(self.tokenizer.all_special_tokens):  # what comes of a folder without the files
            raise SpecError(f"`{folder}` should hold the files of a tokenizer, found no vocabulary.")
        self.pad_id: int = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        files = [folder / name for name in ("tokenizer.json", "tokenizer_config.json")]
        digests = [sha256_file(file) if file.is_file() else "" for file in files]
        self.digest = hashlib.sha256(json.dumps(["text", max_length, *digests]).encode()).hexdigest()
        bare = self.tokenizer.backend_tokenizer
        self.specials: int = bare.num_special_tokens_to_add(False)
        self.ends_special: bool = bool(self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"][-1])

    def texts(self, texts: Sequence[tuple[str, ...]]) -> list[list[int]]:
        """Token ids of each text; several fields of one sample are parted by the separator token."""
        gap = f" {self.tokenizer.sep_token} " if self.tokenizer.sep_token else "\n"
        found = self.tokenizer([gap.join(fields) for fields in texts], **self._options())["input_ids"]
        return [ids or [self.pad_id] for ids in found]

    def words(self, lists: Sequence[list[str]]) -> list[tuple[list[int], list[int]]]:
        """Token ids of each list of words, and for each token the word that it is the first piece of, or -1."""
        if not lists:
            return []
        found = self.tokenizer(list(lists), is_split_into_words=True, **self._options())
        answer = []
        for number in range(len(lists)):
            of = found.word_ids(number)
            first = [-1 if word is None or (place and of[place - 1] == word) else word for place, word in enumerate(of)]
            answer.append((found["input_ids"][number] or [self.pad_id], first or [-1]))
        return answer

    def _options(self) -> dict[str, Any]:
        return {
            "truncation": True,
            "max_length": self.max_length,
            "padding": False,
            "return_attention_mask": False,
            "return_token_type_ids": False,
        }

    def check_texts(self, spec: TaskSpec, row: Row, side: slice) -> tuple[str, ...]:
        """The fields of one side.

        :raises SampleError: one is no text.
        """
        for column, value in zip(spec.fields[side], row.fields[side], strict=True):
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise wrong(spec, row.line, column, f"should be text, found {repr(value)[:60]}")
        return tuple(str(value) for value in row.fields[side])

    def check_words(self, spec: TaskSpec, row: Row) -> list[str]:
        """:raises SampleError: the field is no list of words."""
        found = words(spec, row.line, spec.fields[0], row.fields[0])
        if not found:
            raise wrong(spec, row.line, spec.fields[0], "should have at least one token, found none")
        return found


class VectorProcessor:
    """Reads numbers: as many columns as there are features, or one column that holds them all as a list.

    :param shape: of one sample's features.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.digest = hashlib.sha256(json.dumps(["vector", *shape]).encode()).hexdigest()

    def vector(self, spec: TaskSpec, row: Row, fields: slice) -> NDArray[np.float32]:
        """One side's features, flat.

        :raises SampleError: not numbers, not finite, or not as many as the encoder reads.
        """
        columns, values = spec.fields[fields], row.fields[fields]
        column = columns[0] if len(columns) == 1 else ", ".join(columns)
        raw: Any = self._list(spec, row.line, column, values[0]) if len(values) == 1 else list(values)
        try:
            flat = np.asarray(raw, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise wrong(spec, row.line, column, f"should be numbers, found {repr(raw)[:60]}") from None
        if flat.size != int(np.prod(self.shape)):
            raise wrong(spec, row.line, column, f"should be {int(np.prod(self.shape))} numbers {self.shape}, found {flat.size}")
        if not np.isfinite(flat).all():
            raise wrong(spec, row.line, column, "should be finite numbers, found NaN or infinity")
        return flat

    def _list(self, spec: TaskSpec, line: int, column: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise wrong(spec, line, column, f"should be a JSON list of numbers, found {value[:60]!r}") from None


Processor = TextProcessor | VectorProcessor
"""What an encoder needs done to samples before it can read them. Its `digest` is of all that decides the numbers."""
