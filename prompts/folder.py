"""A model folder: what can be known of it without loading it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(Exception):
    """A model that cannot be used or made; the message is one line for the user."""


@dataclass(frozen=True)
class ModelFolder:
    """Facts of a causal LM's folder, read from its config.json."""

    path: Path
    kind: str  # canary, random, smollm2, or "other"
    vocabulary: int  # token ids are below this
    context: int | None  # longest sequence, tokens; None = not said
    window: int | None  # attention window, tokens
    bos: int | None

    @property
    def has_text(self) -> bool:
        """Whether prompts can be written as text: there is a tokenizer, and not the canary's."""
        return self.kind not in ("canary", "random") and (self.path / "tokenizer.json").is_file()


def inspect(path: Path) -> ModelFolder:
    """Read a model folder. Raises ModelError if it is missing, empty, unreadable or not a causal LM."""
    if not path.is_dir():
        raise ModelError(f"no model folder {path}; give one, or a name that `kvfence list` shows")
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        what = "is empty" if not any(path.iterdir()) else "has no config.json"
        raise ModelError(f"model folder {path} {what}; give a folder saved by save_pretrained") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} is not a model configuration")
    architectures = config.get("architectures") or []
    if architectures and not any("CausalLM" in a or "LMHead" in a for a in architectures):
        raise ModelError(f"{path} is a {architectures[0]}, not a causal LM")
    text: dict[str, Any] = {**config, **(config.get("text_config") or {})}
    if not isinstance(text.get("vocab_size"), int):
        raise ModelError(f"{file} names no vocab_size; it is not the configuration of a causal LM")
    bos = text.get("bos_token_id")
    return ModelFolder(
        path=path,
        kind=config.get("kvfence_model", "other"),
        vocabulary=text["vocab_size"],
        context=text.get("max_position_embeddings"),
        window=text.get("sliding_window") if text.get("use_sliding_window", True) else None,
        bos=bos if isinstance(bos, int) else None,
    )


class FolderTokenizer:
    """The tokenizer of a model folder, without transformers."""

    def __init__(self, folder: ModelFolder) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(f"cannot read {folder.path / 'tokenizer.json'}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text
