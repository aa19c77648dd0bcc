"""Tokens a second of the reference engine beside transformers' own: batched `generate` and continuous batching.

    python benchmarks/reference_throughput.py [--quick] [--model canary|smollm2] [--shared N] [CONCURRENCY ...]

Time is from the first submission to the last token, prefill included, in float32. All three get the same prompts, new
ones in every round, and start with nothing cached. They take turns; what is told are medians, of rates and of ratios
within a round. `generate` gets a left-padded batch, in which all prompts are equally long: no padding costs it time.
"""

import argparse
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from reference_requests import canary_prompts, run
from transformers import ContinuousBatchingConfig, GenerationConfig

from kvfence.prompts import alphabet, models
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import load_model
from kvfence.reference_impl.settings import Settings

BLOCK, BUDGET = 16, 1024
Prompts = Sequence[Sequence[int]]
Outputs = list[tuple[int, ...]]


@dataclass(frozen=True)
class Work:
    """What a model is asked for."""

    model: str
    shared: int  # tokens that all prompts begin with
    own: int
    new: int

    def prompts(self, count: int, seed: int) -> list[tuple[int, ...]]:
        """Prompts, all equally long."""
        rng = random.Random(seed)
        if self.model == "canary":
            return canary_prompts(count, self.shared, self.own, rng)
        shared = tuple(rng.randrange(1_000, 40_000) for _ in range(self.shared))
        return [(*shared, *(rng.randrange(1_000, 40_000) for _ in range(self.own))) for _ in range(count)]


PROMPT, NEW = 162, {"canary": 150, "smollm2": 32}  # tokens


def reference(model: Any, work: Work, concurrency: int) -> Callable[[Prompts], Outputs]:
    """The reference engine."""
    length = work.shared + work.own + work.new
    settings = Settings(2 + concurrency * (ceil(length / BLOCK) + 1), BLOCK, concurrency, BUDGET)
    engine = ReferenceEngine(model, settings)

    def answer(prompts: Prompts) -> Outputs:
        engine.reset_cache()
        outputs: Outputs = run(engine, [(prompt, work.new) for prompt in prompts])
        return outputs

    return answer


def generate(model: Any, work: Work, concurrency: int) -> Callable[[Prompts], Outputs]:
    """transformers' `generate`, one batch."""
    config = GenerationConfig(max_new_tokens=work.new, do_sample=False, pad_token_id=0)
    model.generation_config = GenerationConfig(pad_token_id=0)  # no EOS: a token like any

    @torch.inference_mode()
    def answer(prompts: Prompts) -> Outputs:
        ids = torch.tensor(prompts)
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return [tuple(row) for row in out[:, ids.shape[1] :].tolist()]

    return answer


def continuous(model: Any, work: Work, concurrency: int) -> Callable[[Prompts], Outputs]:
    """transformers' continuous batching, stepped from here as its own thread does, without logprobs."""
    length = work.shared + work.own + work.new
    settings = ContinuousBatchingConfig(
        page_size=BLOCK,
        num_blocks=2 + concurrency * (ceil(length / BLOCK) + 1),
        max_batch_tokens=BUDGET,
        max_requests_per_batch=concurrency,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=settings)
    processor = manager.batch_processor = manager._create_batch_processor()

    @torch.inference_mode()
    def answer(prompts: Prompts) -> Outputs:
        processor.cache.evict_cached_blocks()
        for i, prompt in enumerate(prompts):
            manager.add_request(list(prompt), request_id=str(i), max_new_tokens=work.new, eos_token_id=-1)
        done: dict[str, tuple[int, ...]] = {}
        while len(done) < len(prompts):
            if processor.prepare_next_batch():
                manager._generation_step()
                processor.update_batch()
            while (output := manager.get_result()) is not None:
                assert output.error is None, output.error
                if output.is_finished():
                    done[output.request_id] = tuple(output.generated_tokens)
        return [done[str(i)] for i in range(len(prompts))]

    return answer


SYSTEMS = {"reference": reference, "generate": generate, "continuous": continuous}


def compare(work: Work, concurrency: int, rounds: int, loaded: dict[str, Any]) -> dict[str, list[float]]:
    """Tokens a second of each system in rounds in which they take turns; outputs must be right."""
    answers = {name: system(loaded[name], work, concurrency) for name, system in SYSTEMS.items()}
    rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for round in range(rounds + 1):
        prompts = work.prompts(concurrency, round)
        for name, answer in answers.items():
            begun = time.perf_counter()
            outputs = answer(prompts)
            seconds = time.perf_counter() - begun
            assert {len(output) for output in outputs} == {work.new}
            if work.model == "canary":
                assert outputs == [alphabet.answer(prompt, work.new) for prompt in prompts], name
            if round:  # the first one is to warm up
                rates[name].append(concurrency * work.new / seconds)
    return rates


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("concurrency", type=int, nargs="*", default=[1, 8, 16, 32])
    parser.add_argument("--model", choices=NEW, default="canary")
    parser.add_argument("--shared", type=int, default=96, help="tokens that all prompts of 162 begin with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv[1:])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    work = Work(options.model, options.shared, PROMPT - options.shared, NEW[options.model])
    if options.quick:
        work, options.concurrency, options.rounds = Work(work.model, 32, 16, 4), [2], 1
    loaded = {name: load_model(models.resolve(work.model).path) for name in SYSTEMS}
    print(f"{work.model}, {work.shared} + {work.own} prompt tokens, {work.new} new, {options.rounds} rounds")
    for concurrency in options.concurrency:
        rates = compare(work, concurrency, options.rounds, loaded)
        figures = ", ".join(f"{name} {statistics.median(each):,.0f}" for name, each in rates.items())
        ratios = []
        for name in ("generate", "continuous"):
            each = [own / other for own, other in zip(rates["reference"], rates[name], strict=True)]
            ratios.append(f"{statistics.median(each):.2f} × {name} ({min(each):.2f} to {max(each):.2f})")
        print(f"concurrency {concurrency}: tokens/s {figures}; reference is {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main(sys.argv)
