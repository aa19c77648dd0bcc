"""llama.cpp's own server, in this process through xllamacpp: started, asked, looked at, started anew."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from kvfence.adapters.api import (
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Request,
    UnsupportedConfigError,
)
from kvfence.adapters.gguf_file import TYPES, gguf_file
from kvfence.adapters.http_client import HTTPClient, Limits
from kvfence.adapters.llama_cpp_slots import SavedSlots
from kvfence.adapters.stream_session import Emitted, Ended

POOL_TOKENS = 16_384
TOP = 5  # best tokens told at each position
CONNECTIONS = 64  # at a time; those of requests that wait for a slot count too
SILENCE = 240.0  # seconds: a long prompt takes its time
LETTING_GO = 10.0  # seconds in which a slot must be idle once its stream is closed
ANY = -1  # slot
SWITCHES = {"on": True, "off": False}
# Engine arguments and what they are when not given.
ARGUMENTS = {
    "kv_unified": "off",  # one KV cache for all slots, in place of one each
    "cache_ram": "64",  # MiB of prompts kept beside the slots; 0 = none
    "cache_reuse": "0",  # tokens; pieces as long as this are shifted to where an edited prompt has them
    "context_shift": "off",  # a full slot drops half of what it holds, in place of ending
    "flash_attn": "off",
    "slot_save": "off",  # what a request leaves in its slot goes into a file, and comes back from there
    "threads": "1",
}


class LlamaServer:
    """The server of one model in one configuration."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        self._module, self._config = _module(), config
        self._arguments = arguments(config)
        self._file = gguf_file(model, config.dtype)
        self._folder = Path(tempfile.mkdtemp(prefix="kvfence-slots-"))
        self._server: Any = None
        self.saved: SavedSlots | None = None
        self.start()

    def start(self) -> None:
        """Start the server. Raises EngineStartError if it does not start."""
        try:
            self._server = self._module.Server(self._parameters())
        except Exception as error:  # of several kinds, by what went wrong
            raise EngineStartError(f"llama.cpp did not start on {self._file.name}: {error}") from error
        self.address: str = self._server.listening_address
        # Of the limits only the silence matters: the server is ours.
        self.http = HTTPClient(self.address, Limits(seconds=SILENCE), extra="llama-cpp")
        self.context = min(int(slot["n_ctx"]) for slot in self.slots())
        if self._config.sharing and SWITCHES[self._arguments["slot_save"]]:
            self.saved = SavedSlots(self.http, self._folder, self._config.max_concurrency)

    def stop(self) -> None:
        """Stop it, and forget all that it has cached."""
        self.http.close()
        if self.saved:
            self.saved.forget()
        self._server = None  # its last reference: this ends it

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """A server that holds nothing, in place of this one."""
        self.stop()
        self.start()

    @property
    def prompt_cache(self) -> bool:
        """Whether prompts are kept beside the slots."""
        return self._config.sharing and (self._arguments["cache_ram"] != "0" or self.saved is not None)

    def slots(self) -> list[dict[str, Any]]:
        """What the server tells of its slots."""
        slots: list[dict[str, Any]] = self.http.wait(self.http.json("GET", "/slots"))
        return slots

    def erase_idle(self) -> None:
        """Forget what idle slots hold. What a running one holds is found in it when it has ended."""
        for slot in self.slots():
            if not slot["is_processing"]:
                self.http.wait(self.http.json("POST", f"/slots/{slot['id']}?action=erase", {}))

    def admit(self, request: Request, prompt: tuple[int, ...]) -> None:
        needed = len(prompt) + request.max_tokens
        if needed > self.context and not SWITCHES[self._arguments["context_shift"]]:
            raise RefusedError(f"request {request.id} needs {needed} tokens of KV; a slot has {self.context}")

    async def stream(self, request: Request, prompt: tuple[int, ...]) -> AsyncGenerator[Emitted | Ended, None]:
        if self.saved is None:
            async with aclosing(self._stream(request, prompt)) as stream:
                async for heard in stream:
                    yield heard
            return
        answer: list[int] = []
        async with self.saved.slot(prompt) as slot, aclosing(self._stream(request, prompt, slot)) as stream:
            async for heard in stream:
                if isinstance(heard, Emitted):
                    answer.append(heard.token)
                else:  # K/V of the last token were never computed
                    await self.saved.save(slot, (*prompt, *answer[:-1]))
                yield heard

    async def _stream(
        self, request: Request, prompt: tuple[int, ...], slot: int = ANY
    ) -> AsyncGenerator[Emitted | Ended, None]:
        body = {
            "prompt": list(prompt),
            "n_predict": request.max_tokens,
            "stream": True,
            "return_tokens": True,
            "n_probs": TOP,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": self._config.sharing,
            "seed": self._config.seed,
            "id_slot": slot,
        }
        left = request.max_tokens
        async with aclosing(self.http.events("/completion", body)) as events:
            async for event in events:
                for emitted in told(event):
                    left -= 1
                    yield emitted
                if event.get("stop"):
                    if left:
                        raise EngineFaultError(f"the server ended {left} tokens early ({event.get('stop_type')})")
                    yield Ended(int(event["timings"]["cache_n"]))
                    return

    def let_go(self, running: int) -> None:
        self.http.wait(self._let_go(running))

    async def _let_go(self, running: int) -> None:
        end = time.monotonic() + LETTING_GO
        while sum(slot["is_processing"] for slot in await self.http.json("GET", "/slots")) > running:
            if time.monotonic() > end:
                raise EngineFaultError(f"a request was withdrawn and its slot is still busy after {LETTING_GO:g} s")
            await asyncio.sleep(0.002)

    def _parameters(self) -> Any:
        x, config, given = self._module, self._config, self._arguments
        parameters = x.CommonParams()
        parameters.model.path = str(self._file)
        parameters.n_parallel = config.max_concurrency
        parameters.n_ctx = config.pool_size or POOL_TOKENS
        if config.chunk_size:
            parameters.n_batch = parameters.n_ubatch = config.chunk_size
        kind = getattr(x.ggml_type, f"GGML_TYPE_{TYPES[config.dtype]}")
        parameters.cache_type_k = parameters.cache_type_v = kind
        flash = "ENABLED" if SWITCHES[given["flash_attn"]] else "DISABLED"
        parameters.flash_attn_type = getattr(x.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
        parameters.kv_unified = SWITCHES[given["kv_unified"]]
        parameters.ctx_shift = SWITCHES[given["context_shift"]]
        parameters.cache_prompt = config.sharing
        parameters.cache_ram_mib = int(given["cache_ram"]) if config.sharing else 0
        parameters.n_cache_reuse = int(given["cache_reuse"])
        if SWITCHES[given["slot_save"]]:  # the next request would have an idle slot emptied before it is saved
            parameters.cache_idle_slots = False
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(given["threads"])
        parameters.n_gpu_layers = 0
        parameters.port = 0
        if hasattr(parameters, "hostnames"):  # before 2026.10 there is one, which is this if nothing is said
            parameters.hostnames = ["127.0.0.1"]
        parameters.n_threads_http = CONNECTIONS
        parameters.endpoint_slots, parameters.slot_save_path = True, f"{self._folder}{os.sep}"
        parameters.warmup = parameters.fit_params = False
        setattr(parameters, "ui" if hasattr(parameters, "ui") else "webui", False)
        parameters.verbosity = -1
        return parameters


def arguments(config: EngineConfig) -> Mapping[str, str]:
    """The engine arguments, all of them. Raises EngineStartError or UnsupportedConfigError for what makes no sense."""
    if config.dtype not in TYPES:
        raise UnsupportedConfigError(f"llama-cpp has no dtype {config.dtype}; it has {', '.join(TYPES)}")
    if config.device != "cpu":
        raise UnsupportedConfigError(f"llama-cpp runs on cpu, not on {config.device}")
    for name, value in config.engine_args.items():
        if name not in ARGUMENTS:
            raise EngineStartError(f"llama-cpp has no engine argument {name}; it has {', '.join(ARGUMENTS)}")
        if ARGUMENTS[name] in SWITCHES and value not in SWITCHES:
            raise EngineStartError(f"{name} is on or off, not {value}")
        if ARGUMENTS[name] not in SWITCHES and not (value.isdecimal() and len(value) < 7):
            raise EngineStartError(f"{name} is a number, not {value}")
    return {**ARGUMENTS, **config.engine_args}


def told(event: Mapping[str, Any]) -> list[Emitted]:
    """The tokens of one event of llama.cpp's own completion stream."""
    tokens = event.get("tokens", [])
    probabilities = event.get("completion_probabilities") or [None] * len(tokens)
    found = []
    for token, told in zip(tokens, probabilities, strict=True):
        if told is None:
            found.append(Emitted(token))
            continue
        best = tuple((one["id"], one["logprob"]) for one in told["top_logprobs"])
        found.append(Emitted(token, told["logprob"], best))
    return found


def _module() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise EngineStartError(
            "llama-cpp needs xllamacpp; install it with: pip install --prefer-binary 'kvfence[llama-cpp]'"
        ) from error
    return xllamacpp
