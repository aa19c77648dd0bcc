"""OpenVINO GenAI: a request that is cancelled in its prefill leaves a block that is found, and was never filled.

    python docs/findings/openvino_cancelled_prefill.py FOLDER

FOLDER is a transformers folder of a Llama; it is converted for the engine, which is then used by itself.
"""

import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from kvfence.adapters.openvino_model import model_folder

BLOCKS, BLOCK, BUDGET = 24, 32, 256  # of the pool, tokens, and tokens in a pass, which is the engine's own default
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def logprobs(folder: str, stranger: int, cancelled: bool) -> list[float]:
    """Those of an answer, once a stranger with a prompt drawn from that seed has come and gone."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_batched_tokens = BLOCKS, BUDGET
    scheduler.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(
        folder, genai.Tokenizer(folder), scheduler, "CPU", INFERENCE_NUM_THREADS=1, **EXACT
    )

    def ask(number: int, prompt: Any, new: int) -> Any:
        settings = genai.GenerationConfig(
            max_new_tokens=new, ignore_eos=True, logprobs=1, eos_token_id=0, stop_token_ids={0}
        )
        return pipeline.add_request(number, openvino.Tensor(np.array([prompt], np.int64)), settings)

    def ended(handle: Any) -> list[float]:
        while handle.get_status() == genai.GenerationStatus.RUNNING:
            pipeline.step()
        told: list[float] = []
        while handle.can_read():
            told += [each for output in handle.read().values() for each in output.generated_log_probs]
        return told

    full = np.random.default_rng(stranger).integers(100, 1200, (BLOCKS - 1) * BLOCK - 40)
    ended(ask(0, full, 8))  # it fills the pool, and ends
    prompt = np.random.default_rng(99).integers(100, 1200, BUDGET + 60)
    beside = ask(1, np.arange(100, 110), 60)  # it decodes, so that a chunk does not end where a block ends
    pipeline.step()
    if cancelled:
        withdrawn = ask(2, prompt, 8)
        pipeline.step()
        withdrawn.cancel()
        pipeline.step()
    found = ended(ask(3, prompt, 8))
    ended(beside)
    return [round(each, 4) for each in found[:4]]


if __name__ == "__main__":
    made = str(model_folder(sys.argv[1]))
    print("openvino-genai", genai.__version__)
    for cancelled in (False, True):
        for stranger in (1, 2):
            what = "one like it was cancelled" if cancelled else "nobody was cancelled"
            print(f"stranger {stranger}, {what}: {logprobs(made, stranger, cancelled)}")
