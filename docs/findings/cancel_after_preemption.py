"""Smallest case: a request that was preempted waits for ever once the request that runs is cancelled.

    python cancel_after_preemption.py MODEL_FOLDER [SECONDS]

Prints what each request came to. An engine without the fault answers the second one with 40 tokens.
"""

import sys
import time

import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
patience = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0  # seconds
# Five blocks of 16 tokens: two requests of 20 + 40 tokens do not fit together, each alone does.
pool = ContinuousBatchingConfig(page_size=16, num_blocks=5, max_batch_tokens=64, use_async_batching=False)
greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=pool)
manager.start()
for name, start in (("first", 100), ("second", 200)):
    prompt = list(range(start, start + 20))
    manager.add_request(prompt, request_id=name, max_new_tokens=40, streaming=True, eos_token_id=-1)

emitted = {"first": 0, "second": 0}
cancelled, heard = None, time.monotonic()
while time.monotonic() - heard < patience and emitted["first"] + emitted["second"] < 80:
    result = manager.get_result(timeout=0.1)
    scheduler = manager.batch_processor and manager.batch_processor.scheduler
    if result is not None:
        emitted[result.request_id], heard = len(result.generated_tokens), time.monotonic()
    if cancelled is None and scheduler and scheduler.block_new_requests:
        cancelled = next(iter(scheduler.active_requests))
        manager.cancel_request(cancelled)

scheduler = manager.batch_processor.scheduler
print(f"transformers {transformers.__version__}: emitted {emitted}, cancelled {cancelled}, nothing for {patience:g} s")
print(f"waiting {list(scheduler.waiting_requests)}, active {list(scheduler.active_requests)}")
print(f"block_new_requests {scheduler.block_new_requests}")
manager.stop(hard_stop=True)
