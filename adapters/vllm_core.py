"""Core: vLLM's engine in this process, run one forward pass at a time, and who took part in the last one."""

from collections.abc import Callable
from typing import Any

from kvfence.adapters.api import Request
from kvfence.adapters.hf_blocks import wrap
from kvfence.adapters.hf_model import TOP


class Core:
    """vLLM's synchronous engine. It calls requests by names of its own, which are `ours` here by those."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.inside = engine.engine_core.engine_core
        self.scheduler = self.inside.scheduler
        self.config = engine.vllm_config
        self.passes = 0
        self.ours: dict[str, str] = {}
        self.scheduled: dict[str, int] = {}  # tokens of each request in the last pass, by vLLM's name, in its order
        wrap(self.scheduler, "schedule", self._schedule)
        wrap(self.scheduler, "update_from_output", self._update)

    @property
    def runner(self) -> Any:
        """What runs the model."""
        return self.inside.model_executor.driver_worker.worker.model_runner

    @property
    def pool(self) -> Any:
        """The pool of blocks."""
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def managers(self) -> Any:
        """Who holds the block tables, one for each kind of layers."""
        return self.scheduler.kv_cache_manager.coordinator.single_type_managers

    @property
    def block_size(self) -> int:
        return int(self.scheduler.block_size)

    @property
    def capacity(self) -> int:
        """Tokens whose KV the pool can hold; one block is never handed out."""
        return (int(self.pool.num_gpu_blocks) - 1) * self.block_size

    @property
    def context(self) -> int:
        """Tokens of prompt and output that a request may have."""
        return int(self.config.model_config.max_model_len)

    def add(self, request: Request, lora: Any = None) -> str:
        """Hand a request over; vLLM's name of it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt)}
        if request.salt is not None:
            prompt["cache_salt"] = request.salt
        greedy = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            logprobs=TOP,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        theirs = str(self.engine.add_request(request.id, prompt, greedy, lora_request=lora))
        self.ours[theirs] = request.id
        return theirs

    def step(self) -> list[Any]:
        """One forward pass, if anybody can run; what came out of it."""
        self.scheduled = {}
        try:
            return list(self.engine.step())
        except Exception:
            # What a pass that broke off leaves behind is in the way of the next one.
            self.runner.execute_model_state = None
            raise

    def withdraw(self, theirs: str) -> bool:
        """Take a request out, wherever it is; False if the scheduler or a block table still holds it afterwards."""
        self.engine.abort_request([theirs], internal=True)
        tables = [manager.req_to_blocks for manager in self.managers]
        return theirs not in self.scheduler.requests and not any(theirs in table for table in tables)

    def forget(self) -> bool:
        """Empty the cache. Requests that run are put back and computed anew, or their blocks could not be let go."""
        return bool(self.engine.reset_prefix_cache(reset_running_requests=bool(self.scheduler.running)))

    def _schedule(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = method(*args, **kwargs)
        self.scheduled = dict(output.num_scheduled_tokens)
        return output

    def _update(self, method: Callable[..., Any], output: Any, *args: Any, **kwargs: Any) -> Any:
        self.passes += output.total_num_scheduled_tokens > 0
        return method(output, *args, **kwargs)
