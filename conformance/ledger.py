"""The table of `kvfence ledger`: what the K/V and the weights of a model take, told without loading it."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from kvfence.conformance.settings import UsageError
from kvfence.prompts.folder import ModelError, ModelFolder
from kvfence.reference_impl.ledger import Ledger, Shape

FLOATS = {"F64", "F32", "BF16", "F16"}  # safetensors' names of what is loaded in whatever dtype is asked for


def table(
    folder: ModelFolder, dtype: str | None, concurrency: int, length: int, block_size: int, prefix: int
) -> Iterator[str]:
    """Lines of text; `dtype` None is the one the model was saved in.

    Raises UsageError for sizes that make no sense and ModelError for a model whose cache is not told by a shape.
    """
    config = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
    dtype = dtype or str(config.get("dtype") or config.get("torch_dtype") or "float32")
    try:
        shape = Shape.of(config)
    except ValueError as error:
        raise ModelError(f"cannot tell from {folder.path / 'config.json'} what K/V take: {error}") from error
    try:
        ledger = Ledger.plan(shape, dtype, concurrency, length, block_size, prefix)
    except ValueError as error:
        raise UsageError(str(error)) from error
    weights = weight_bytes(folder.path, ledger.itemsize)
    heads = f"{shape.kv_heads} KV heads of {shape.head_dim}"
    rows = [
        ("K/V of one token", None, shape.bytes(1, ledger.itemsize)),
        ("formula, nothing shared", None, ledger.formula_bytes),
        ("in whole blocks", ledger.entries, ledger.used_bytes + ledger.shared_bytes),
        ("saved by sharing", ledger.entries - ledger.used, ledger.shared_bytes),
        ("needed", ledger.used, ledger.used_bytes),
        ("of it empty", None, ledger.wasted_bytes),
        ("weights", None, weights),
    ]
    yield f"{folder.path.name}: {shape.layers} layers, {heads}, {dtype}"
    shared = f", the first {prefix:,} shared" if prefix else ""
    yield f"{concurrency:,} × {length:,} tokens{shared}, in blocks of {block_size:,}"
    yield f"formula: 2 × layers × KV heads × head size × {ledger.tokens:,} tokens × {ledger.itemsize} bytes"
    yield f"{'':<24}{'blocks':>12}{'memory':>14}"
    for name, blocks, size in rows:
        yield f"{name:<24}{'' if blocks is None else f'{blocks:,}':>12}{_with_unit(size):>14}"


def weight_bytes(folder: Path, itemsize: int) -> int | None:
    """Bytes of the weights once loaded in floats of `itemsize`; None where they are quantised or not in safetensors.

    Raises ModelError for a file that cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("model*.safetensors"))
    total = 0
    for file in files:
        try:
            with safe_open(file, "np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    tensor = tensors.get_slice(name)
                    if tensor.get_dtype() not in FLOATS:
                        return None
                    total += prod(tensor.get_shape()) * itemsize
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
    return total if files else None


def _with_unit(size: int | None) -> str:
    if size is None:
        return "not known"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:,.2f} {unit}"
    return f"{size} B"
