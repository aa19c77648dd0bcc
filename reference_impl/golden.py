"""Golden: what a request's greedy output is when nothing is shared and nothing is cached.

Two roads to the same verdict. `Golden.generate` is the yardstick: one full forward per token, no KV cache exists.
`Golden.verify` is the fast road: one forward over prompt and output gives, at every output position, how far the
emitted token is from the one golden would have chosen. By induction over positions, an output that agrees with every
choice is the output of `generate`.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from kvfence.reference_impl.attention import Call, probabilities, scores_of, watched
from kvfence.reference_impl.media import embed
from kvfence.reference_impl.shapes import cached_greedy, kept_kv

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


# Sees one layer's probabilities [heads, n, T], float32, of the n queries that an output's tokens come from.
Visit = Callable[[int, torch.Tensor], None]


class GoldenError(Exception):
    """Golden cannot be had for a model; the message is one line for the user."""


@dataclass(frozen=True)
class Verification:
    """Golden's view of an output of n tokens, position by position, given the output's own tokens before each."""

    choices: tuple[int, ...]  # [n] golden's token
    margins: tuple[float, ...]  # [n] max logit minus the emitted token's logit; 0 where golden agrees
    logprobs: tuple[float, ...]  # [n] nats, of the emitted token


# While it loads, transformers takes `tie_weights` out of its classes: another load at that time leaves weights out.
_loading = Lock()


def load_model(folder: Path | str, dtype: str = "float32", device: str = "cpu") -> Any:
    """Load a transformers causal LM for inference in `dtype` on `device`.

    Raises GoldenError when the dtype has no meaning here or transformers cannot load the folder as a causal LM.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if dtype not in DTYPES:
        raise GoldenError(f"unknown dtype {dtype}; choose one of {', '.join(DTYPES)}")
    # TF32 would round float32 products to 10 bits and make every margin a tie.
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with _loading:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True)
    except Exception as error:  # whatever its loaders raise: safetensors has a class of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GoldenError(f"cannot load {folder} as a causal LM: {reason}") from error
    return model.to(device).eval()


class Golden:
    """Greedy decoding of one request, alone, by full recomputation.

    float64 here means weights, products and logits in float64; the parts that transformers itself fixes to float32
    (rotary tables, the variance in RMSNorm) stay so.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "float32", device: str = "cpu") -> Self:
        """Golden on the model in `folder`; see `load_model` for the errors."""
        return cls(load_model(folder, dtype, device))

    @torch.inference_mode()
    def logits(
        self, tokens: Sequence[int], keep: int, visit: Visit | None = None, media: Sequence[tuple[int, str]] = ()
    ) -> torch.Tensor:
        """Logits [keep, vocabulary] after each of the last `keep` tokens, float32 (float64 for a float64 model).

        `visit` is shown each layer's attention from those tokens; NotWatchableError if it cannot be had. `media` are
        (position, content) of items whose embeddings stand in the places of those tokens.
        """

        def show(call: Call) -> None:
            assert visit is not None
            visit(call.layer, probabilities(call, slice(-keep, None))[0])

        ids = torch.tensor([tokens], dtype=torch.long, device=self.model.device)
        # Full logits of a long prompt would be gigabytes: 4,000 positions of a 49,152 vocabulary are 800 MB.
        extra = {"logits_to_keep": keep} if self._keeps_logits else {}
        inputs = {"input_ids": ids}
        if media:
            inputs = {"inputs_embeds": embed(self.model.get_input_embeddings(), ids, media)}
        with watched(self.model, show) if visit else nullcontext():
            logits: torch.Tensor = self.model(**inputs, use_cache=False, **extra).logits[0, -keep:]
        return logits if logits.dtype == torch.float64 else logits.float()

    def kv(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """K and V [2, layers, kv_heads, T, head_dim] of one forward over T tokens, keys as they are attended to."""
        layers = kept_kv(self.model, tokens)
        return np.stack([np.stack([part[i].float().cpu().numpy() for part in layers]) for i in (0, 1)])

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def rounding(self) -> float:
        """The step to which a number near 1 can be told in the model's dtype."""
        return float(torch.finfo(self.model.dtype).eps)

    @torch.inference_mode()
    def attention_rounding(self, tokens: Sequence[int]) -> float:
        """The step to which a probability of attention over `tokens` can be told in the model's dtype.

        A score of s nats is rounded by s times the step near 1, and moves a probability by at most as much.
        """
        sizes = [1.0]
        ids = torch.tensor([tokens], dtype=torch.long, device=self.model.device)
        with watched(self.model, lambda call: sizes.append(float(scores_of(call, slice(None)).abs().max()))):
            self.model(input_ids=ids, use_cache=False)
        return max(sizes) * self.rounding

    def resolution(self, tokens: Sequence[int]) -> float:
        """The step, in logits, to which the largest logit over `tokens` can be told in the model's dtype."""
        return float(self.logits(tokens, len(tokens)).abs().max()) * self.rounding

    def generate(self, prompt: Sequence[int], n: int) -> tuple[int, ...]:
        """The golden output: `n` tokens, each from a forward over all before it. EOS is a token like any."""
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(int(self.logits(tokens, keep=1)[0].argmax()))
        return tuple(tokens[len(prompt) :])

    def output(self, prompt: Sequence[int], n: int) -> tuple[int, ...]:
        """The output of `generate`, sooner: decoded with a cache, then made right by as many forwards as it takes."""
        tokens: tuple[int, ...] = ()
        while len(tokens) < n:
            draft = (*tokens, *cached_greedy(self.model, [*prompt, *tokens], n - len(tokens)))
            choices = self.verify(prompt, draft).choices
            right = next((i for i in range(n) if draft[i] != choices[i]), n)
            tokens = choices[: right + 1]
        return tokens

    def beams(
        self, prompt: Sequence[int], width: int, n: int, stop: int | None = None
    ) -> list[tuple[tuple[int, ...], float]]:
        """Beam search by full recomputation: the `width` best outputs and their logprobs (nats, summed), best first.

        Of the 2 × `width` best continuations by one token those by `stop` end, and the best `width` others go on.
        """
        ended: list[tuple[tuple[int, ...], float]] = []
        live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for _ in range(n):
            logprobs = torch.stack([self.logits([*prompt, *tokens], 1)[0].log_softmax(-1) for tokens, _ in live])
            sums = (logprobs.double() + torch.tensor([[sum_] for _, sum_ in live], device=logprobs.device)).flatten()
            best = sums.topk(min(2 * width, len(sums)))
            vocabulary = logprobs.shape[1]
            grown = [
                ((*live[i // vocabulary][0], i % vocabulary), value)
                for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
            ended += [beam for beam in grown if beam[0][-1] == stop]
            live = [beam for beam in grown if beam[0][-1] != stop][:width]
        return sorted([*ended, *live], key=lambda beam: -beam[1])[:width]

    def verify(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        visit: Visit | None = None,
        media: Sequence[tuple[int, str]] = (),
    ) -> Verification:
        """Judge `output` by one forward over prompt and output, showing the attention of each layer to `visit`.

        Raises ValueError if prompt or output is empty, NotWatchableError if attention is asked for and cannot be had.
        """
        if not prompt or not output:
            raise ValueError("verification needs a prompt and an output of at least one token each")
        logits = self.logits([*prompt, *output[:-1]], keep=len(output), visit=visit, media=media)
        emitted = torch.tensor(list(output), dtype=torch.long, device=logits.device).unsqueeze(1)
        top, choices = logits.max(dim=-1)
        margins = top - logits.gather(1, emitted).squeeze(1)
        logprobs = logits.log_softmax(dim=-1).gather(1, emitted).squeeze(1)
        return Verification(tuple(choices.tolist()), tuple(margins.tolist()), tuple(logprobs.tolist()))
