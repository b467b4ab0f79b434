"""A BERT small enough to make in a blink: two layers, hidden 32, a WordPiece vocabulary of its own."""

import json
from pathlib import Path

from tasks.specs import Options

WORDS = [
    "good",
    "bad",
    "food",
    "slow",
    "fast",
    "loved",
    "hated",
    "place",
    "the",
    "a",
    "was",
    "is",
    "not",
    "and",
    "very",
    "room",
    "price",
    "call",
    "free",
    "win",
    "now",
    "meeting",
    "report",
    "street",
    "main",
    "road",
    "north",
    "city",
    "dog",
    "cat",
    "animal",
    "engine",
    "handle",
    "start",
    "red",
    "green",
    "blue",
]
PIECES = ["##s", "##ing", "##ly", "##ed"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz0123456789.,!?", *PIECES]
VOCABULARY += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
VOCABULARY = list(dict.fromkeys(VOCABULARY))

OPTIONS: Options = {
    "model_type": "bert",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""A Hugging Face config, for `tasks.specs.Config(options=OPTIONS, tokenizer=...)`. Dropout is off."""


def tokenizer(folder: Path) -> Path:
    """Write the tokenizer's files; no library is needed for it."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    about = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for token, number in special.items()
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("[CLS]", 0), _sequence("A", 0), _special("[SEP]", 0)],
            "pair": [_special("[CLS]", 0), _sequence("A", 0), _special("[SEP]", 0), _sequence("B", 1), _special("[SEP]", 1)],
            "special_tokens": {token: {"id": token, "ids": [special[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: number for number, token in enumerate(VOCABULARY)},
        },
    }
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64, **names}
    (folder / "tokenizer.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(OPTIONS), encoding="utf-8")
    return folder


def _special(token: str, kind: int) -> dict[str, object]:
    return {"SpecialToken": {"id": token, "type_id": kind}}


def _sequence(name: str, kind: int) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": kind}}
