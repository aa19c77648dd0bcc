"""A GGUF file for llama.cpp, written from a transformers folder of the Llama kind.

Its vocabulary names no end of text, so that llama.cpp treats that token like any other: biasing it away, as
`ignore_eos` does, would change what golden computes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvfence.adapters.api import EngineStartError
from kvfence.adapters.llama_folder import cache_folder, made_of, read_config, written

GENERATION = 2  # raised whenever what is written changes, so that no stale file is taken from the cache
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_file(model: str, dtype: str) -> Path:
    """The GGUF of a model folder, written to the user's cache unless it is there.

    Raises EngineStartError for a folder that is not a Llama's, or if it cannot be written.
    """
    folder = Path(model)
    config = read_config(folder, "llama-cpp")
    name = f"{made_of(folder, 'llama-cpp')}-{dtype}-{GENERATION}.gguf"
    weights = folder / "model.safetensors"
    return written(cache_folder() / "gguf" / name, lambda file: _write(config, weights, dtype, file))


def _write(config: dict[str, Any], weights: Path, dtype: str, file: Path) -> None:
    try:
        import gguf
    except ImportError as error:
        raise EngineStartError("llama-cpp needs gguf; install it with: pip install 'kvfence[llama-cpp]'") from error
    writer = gguf.GGUFWriter(str(file), "llama")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(weights.parent.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("rwkv")  # the one whose text is split into the longest tokens that match
    pieces = token_pieces(weights.parent, config["vocab_size"])
    # Of bytes that begin no token; without one llama.cpp would take them for token -1.
    writer.add_unk_token_id(next((token for token, piece in enumerate(pieces) if piece.strip() == "<unk>"), 0))
    writer.add_token_list([escaped(piece) for piece in pieces])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(pieces))
    for name, tensor in _tensors(weights, heads, kv_heads):
        kind = getattr(gguf.GGMLQuantizationType, "F32" if tensor.ndim == 1 else TYPES[dtype])
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(weights: Path, heads: int, kv_heads: int) -> Iterator[tuple[str, Any]]:
    """Names and float32 arrays as llama.cpp has them."""
    from safetensors import safe_open

    with safe_open(str(weights), framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - it is no mapping
            array = stored.get_tensor(name).float().numpy()
            if name in TOP:
                yield TOP[name], array
                continue
            parts = name.split(".")
            part = LAYER.get(".".join(parts[3:-1])) if name.startswith("model.layers.") else None
            if part is None or parts[-1] != "weight":
                raise EngineStartError(f"{weights} holds {name}, which llama.cpp's Llama does not have")
            if part in ("attn_q", "attn_k"):
                array = interleaved(array, heads if part == "attn_q" else kv_heads)
            yield f"blk.{parts[2]}.{part}.weight", array


def interleaved(weight: Any, heads: int) -> Any:
    """A query or key projection [heads · head_dim, hidden] with the pairs that RoPE turns side by side.

    transformers turns dimension i with i + head_dim/2, llama.cpp's Llama 2i with 2i + 1.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def token_pieces(folder: Path, vocabulary: int) -> list[str]:
    """The text of each token; where there is none of its own that can be sent alone, its number in brackets."""
    pieces = [f"<{token}>" for token in range(vocabulary)]
    file = folder / "tokenizer.json"
    if not file.is_file():
        return pieces
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer.from_file(str(file))
    # Words that a space separates are sent with the space before them; the first of a text has none.
    space = " " if isinstance(tokenizer.model, WordLevel) else ""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    taken: set[str] = set()
    for token in range(min(vocabulary, tokenizer.get_vocab_size())):
        text = tokenizer.decode([token], skip_special_tokens=False)
        bare = not space or tokenizer.id_to_token(token) == "<bos>"
        piece = text if bare else space + text
        if not text or "\ufffd" in text or piece in taken or (text in special and not space):
            continue
        taken.add(piece)
        pieces[token] = piece
    return without_traps(pieces)


def without_traps(pieces: list[str]) -> list[str]:
    """Pieces such that whatever begins one has a token, if only of its first byte: `<` and space get unused ones.

    llama.cpp's tokenizer goes back to the beginning of a text, for ever, where a token begins and none ends.
    """
    spare = [token for token, piece in enumerate(pieces) if "unused" in piece]
    for byte in {" ", "<"} - set(pieces):
        if spare:
            pieces[spare.pop()] = byte
    whole = {piece.encode() for piece in pieces}
    return [piece if piece.encode()[:1] in whole else f"<{token}>" for token, piece in enumerate(pieces)]


def escaped(piece: str) -> str:
    r"""A piece as llama.cpp's tokenizer reads it, every byte as \xNN.

    llama.cpp would take a token for the end of text by its spelling alone; of this spelling it knows none.
    """
    return "".join(f"\\x{byte:02x}" for byte in piece.encode())
