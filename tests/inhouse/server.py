"""An engine as a company may have one; it knows nothing of kvfence.

It answers prompts side by side and keeps K/V of the blocks of prompts, for others that begin in the same way. With
`careless` it finds a block by its own tokens alone, whatever stood before it.
"""

from copy import deepcopy

import torch
from transformers import AutoModelForCausalLM, DynamicCache

BLOCK = 16


class Server:
    def __init__(self, folder: str, dtype: str, share: bool, careless: bool = False):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.share, self.careless = share, careless
        self.blocks: dict[tuple[int, ...], DynamicCache] = {}

    @torch.inference_mode()
    def serve(self, prompts: list[tuple[int, ...]], n: int) -> list[dict]:
        jobs = [self._begin(prompt) for prompt in prompts]
        for _ in range(n):
            for job in jobs:
                self._step(job)
        return jobs

    def _begin(self, prompt: tuple[int, ...]) -> dict:
        job = {"cache": DynamicCache(), "due": prompt, "cached": 0, "tokens": [], "logprobs": [], "prompt": prompt}
        for end in range(BLOCK, len(prompt), BLOCK) if self.share else ():
            if found := self.blocks.get(self._key(prompt[:end])):
                job |= {"cache": deepcopy(found), "due": prompt[end:], "cached": end}
        return job

    def _step(self, job: dict) -> None:
        ids = torch.tensor([job["due"]])
        # transformers calls it cache from 5.24 on.
        out = self.model(ids, use_cache=True, **{self._argument: job["cache"]})
        logprobs = out.logits[0, -1].float().log_softmax(-1)
        token = int(logprobs.argmax())
        if not job["tokens"] and self.share:
            self._keep(job)
        job["due"] = (token,)
        job["tokens"].append(token)
        job["logprobs"].append(float(logprobs[token]))

    def _keep(self, job: dict) -> None:
        for end in range(BLOCK, len(job["prompt"]) + 1, BLOCK):
            cut = deepcopy(job["cache"])
            if beyond := len(job["prompt"]) - end:
                cut.crop(-beyond)
            self.blocks.setdefault(self._key(job["prompt"][:end]), cut)

    def _key(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return (len(tokens), *tokens[-BLOCK:]) if self.careless else tokens

    @property
    def _argument(self) -> str:
        return "cache" if "cache" in self.model.forward.__code__.co_varnames else "past_key_values"
