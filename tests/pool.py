"""What the tests of the slot pool share: an engine, prompts with a common prefix, whose answers are wrong."""

import slot_pool

from kvfence.adapters.api import EngineConfig, Request
from kvfence.prompts import alphabet

N = 24
COMMON = tuple(range(100, 140))
# Two that share 41 tokens, of which 32 are whole blocks; a stranger as long; one shorter than a block.
FIRST = alphabet.prompt_tokens((*COMMON, *range(200, 208)))
PARTNER = alphabet.prompt_tokens((*COMMON, *range(230, 240)), start=30)
STRANGER = alphabet.prompt_tokens(range(400, 448))
SHORT = alphabet.prompt_tokens(range(500, 510))
PROMPTS = (FIRST, PARTNER, STRANGER, SHORT)


def opened(folder, fault="none", **config):
    config = {"max_concurrency": 4, **config}
    return slot_pool.open_engine(str(folder.path), EngineConfig(engine_args={"fault": fault}, **config))


def answers(engine, prompts, calls="batch", n=N):
    requests = [Request(str(i), prompt, n) for i, prompt in enumerate(prompts)]
    batches = [[request] for request in requests] if calls == "serial" else [requests]
    return [completion for batch in batches for completion in engine.generate(batch)]


def harmed(engine, prompts, calls="batch"):
    completions = answers(engine, prompts, calls)
    return [c.tokens != alphabet.answer(prompt, N) for c, prompt in zip(completions, prompts, strict=True)]


def of(events, *actions):
    return [event for event in events if event.action in actions]
