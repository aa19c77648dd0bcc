"""An OpenVINO IR in float32 of a Llama's transformers folder, built operation by operation.

It has the inputs and the state that OpenVINO GenAI's own conversions have, so that its continuous batching finds each
attention and turns it into a paged one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvfence.adapters.api import EngineStartError
from kvfence.adapters.llama_folder import cache_folder, made_of, read_config, written

GENERATION = 1  # raised whenever what is written changes, so that no stale folder is taken from the cache
NAME = "openvino_model.xml"  # which OpenVINO GenAI looks for
MISSING = "openvino needs openvino-genai; install it with: pip install 'kvfence[openvino]'"
MASKED = np.float32(-65504.0)


def model_folder(model: str) -> Path:
    """The folder with the IR of a model folder, written to the user's cache unless it is there.

    Raises EngineStartError for a folder that is not a Llama's, or if it cannot be written.
    """
    folder = Path(model)
    config = read_config(folder, "openvino")
    name = f"{made_of(folder, 'openvino')}-{GENERATION}"

    def write(made: Path) -> None:
        made.mkdir()
        _module().save_model(build(config, folder / "model.safetensors"), made / NAME, compress_to_fp16=False)

    return written(cache_folder() / "openvino" / name, write)


def build(config: dict[str, Any], weights: Path) -> Any:
    """The openvino.Model of a Llama's configuration, with `rope_theta` at its top, and its safetensors file.

    Inputs are input_ids, attention_mask and position_ids, int64 [batch, tokens], and beam_idx, int32 [batch]; the
    output is logits, float32 [batch, tokens, vocabulary]. Raises EngineStartError for a file that does not hold
    exactly a Llama's tensors.
    """
    from safetensors import safe_open

    with safe_open(str(weights), framework="pt") as stored:
        left = set(stored.keys())

        def take(name: str) -> Any:
            if name not in left:
                raise EngineStartError(f"{weights} lacks {name}, which a Llama has")
            left.remove(name)
            return stored.get_tensor(name).float().numpy()

        head = "lm_head.weight" if "lm_head.weight" in left else None  # else tied to the embedding
        built = Llama(config, take).build(head)
    if left:
        raise EngineStartError(f"{weights} holds {min(left)}, which openvino does not convert")
    return built


class Llama:
    """The graph of one model; nodes are openvino.Node."""

    def __init__(self, config: dict[str, Any], take: Callable[[str], Any]) -> None:
        self._ov = _module()
        from openvino import opset15

        self.ops, self._config, self._take = opset15, config, take
        self._heads: int = config["num_attention_heads"]
        self._kv_heads: int = config.get("num_key_value_heads") or self._heads
        self._head_dim: int = config.get("head_dim") or config["hidden_size"] // self._heads
        self._ids, self._mask, self._positions = (
            self._input(name, np.int64, 2) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self._beams = self._input("beam_idx", np.int32, 1)
        self._sinks: list[Any] = []

    def build(self, head: str | None) -> Any:
        """The whole model; `head` names the LM head's weight where it is not the embedding's."""
        ops = self.ops
        embedding = ops.constant(self._take("model.embed_tokens.weight"))
        hidden = ops.gather(embedding, self._ids, _ints(0))
        self._cosines, self._sines = self._rope()
        # Paged attention is causal by itself; that there is a mask is what it is found by.
        seen = ops.convert(ops.unsqueeze(self._mask, _ints(1, 2)), np.float32)
        self._bias = ops.multiply(ops.subtract(ops.constant(np.float32(1)), seen), ops.constant(MASKED))
        for number in range(self._config["num_hidden_layers"]):
            hidden = self._layer(hidden, number)
        hidden = self._norm(hidden, "model.norm")
        output = ops.matmul(hidden, ops.constant(self._take(head)) if head else embedding, False, True)
        logits = ops.result(output)
        logits.output(0).set_names({"logits"})
        inputs = [self._ids, self._mask, self._positions, self._beams]
        return self._ov.Model([logits], self._sinks, inputs, "llama")

    def _layer(self, hidden: Any, number: int) -> Any:
        ops, name = self.ops, f"model.layers.{number}"
        normed = self._norm(hidden, f"{name}.input_layernorm")
        query = self._split(self._linear(normed, f"{name}.self_attn.q_proj"), self._heads)
        key = self._split(self._linear(normed, f"{name}.self_attn.k_proj"), self._kv_heads)
        value = self._split(self._linear(normed, f"{name}.self_attn.v_proj"), self._kv_heads)
        attended = ops.scaled_dot_product_attention(
            self._turn(query),
            self._cached(self._turn(key), f"past_key_values.{number}.keypresent.{number}.key"),
            self._cached(value, f"past_key_values.{number}.valuepresent.{number}.value"),
            self._bias,
            ops.constant(np.float32(self._head_dim**-0.5)),
            causal=False,
        )
        joined = ops.reshape(ops.transpose(attended, _ints(0, 2, 1, 3)), _ints(0, 0, -1), True)
        hidden = ops.add(hidden, self._linear(joined, f"{name}.self_attn.o_proj"))
        normed = self._norm(hidden, f"{name}.post_attention_layernorm")
        gate = ops.swish(self._linear(normed, f"{name}.mlp.gate_proj"))
        gated = ops.multiply(gate, self._linear(normed, f"{name}.mlp.up_proj"))
        return ops.add(hidden, self._linear(gated, f"{name}.mlp.down_proj"))

    def _input(self, name: str, kind: Any, rank: int) -> Any:
        node = self.ops.parameter([-1] * rank, kind, name=name)
        node.output(0).set_names({name})
        return node

    def _rope(self) -> tuple[Any, Any]:
        """Cosines and sines by which queries and keys are turned, float32 [batch, 1, tokens, head_dim]."""
        ops = self.ops
        steps = np.arange(0, self._head_dim, 2, dtype=np.float32) / np.float32(self._head_dim)
        turns = np.float32(1) / np.float32(self._config["rope_theta"]) ** steps
        positions = ops.unsqueeze(ops.convert(self._positions, np.float32), _ints(2))
        angles = ops.multiply(positions, ops.constant(np.concatenate([turns, turns])[None, None]))
        return ops.unsqueeze(ops.cos(angles), _ints(1)), ops.unsqueeze(ops.sin(angles), _ints(1))

    def _turn(self, states: Any) -> Any:
        """Queries or keys [batch, heads, tokens, head_dim], turned by their positions."""
        ops, half = self.ops, self._head_dim // 2
        first = ops.slice(states, _ints(0), _ints(half), _ints(1), _ints(3))
        second = ops.slice(states, _ints(half), _ints(2 * half), _ints(1), _ints(3))
        across = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        return ops.add(ops.multiply(states, self._cosines), ops.multiply(across, self._sines))

    def _cached(self, states: Any, name: str) -> Any:
        """Keys or values [batch, heads, all tokens, head_dim], those of earlier calls before the new ones."""
        from openvino.op.util import Variable, VariableInfo

        ops, info = self.ops, VariableInfo()
        info.data_shape = self._ov.PartialShape([-1, self._kv_heads, -1, self._head_dim])
        info.data_type, info.variable_id = self._ov.Type.f32, name
        variable = Variable(info)
        batch = ops.gather(ops.shape_of(self._ids, "i64"), _ints(0), _ints(0))
        shape = ops.concat([batch, _ints(self._kv_heads), _ints(0), _ints(self._head_dim)], 0)
        none = ops.broadcast(ops.constant(np.float32(0)), shape)
        past = ops.gather(ops.read_value(none, variable), self._beams, _ints(0))
        every = ops.concat([past, states], 2)
        self._sinks.append(ops.assign(every, variable))
        if (group := self._heads // self._kv_heads) == 1:
            return every
        wide = ops.broadcast(ops.unsqueeze(every, _ints(2)), _ints(1, 1, group, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, _ints(0, self._heads, -1, self._head_dim), True)

    def _split(self, states: Any, heads: int) -> Any:
        """States [batch, tokens, heads · head_dim] by head: [batch, heads, tokens, head_dim]."""
        by_head = self.ops.reshape(states, _ints(0, 0, heads, self._head_dim), True)
        return self.ops.transpose(by_head, _ints(0, 2, 1, 3))

    def _norm(self, hidden: Any, name: str) -> Any:
        ops, epsilon = self.ops, np.float32(self._config["rms_norm_eps"])
        square = ops.reduce_mean(ops.power(hidden, ops.constant(np.float32(2))), _ints(-1), True)
        size = ops.sqrt(ops.add(square, ops.constant(epsilon)))
        normed = ops.multiply(hidden, ops.divide(ops.constant(np.float32(1)), size))
        return ops.multiply(normed, ops.constant(self._take(f"{name}.weight")))

    def _linear(self, hidden: Any, name: str) -> Any:
        return self.ops.matmul(hidden, self.ops.constant(self._take(f"{name}.weight")), False, True)


def _ints(*values: int) -> Any:
    """A constant int64 [n]."""
    from openvino import opset15

    return opset15.constant(np.array(values, np.int64))


def _module() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise EngineStartError(MISSING) from error
    return openvino
