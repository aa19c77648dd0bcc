"""What the tests of servers share: prompts with a common prefix, their right answers, and requests for them."""

from kvfence.adapters.api import Request
from kvfence.prompts import alphabet

SHARED = tuple(range(100, 130))
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 206 + 20 * i))) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 410))
]
HEAD = len(SHARED) + 1  # BOS and the shared words
N = 12


def requests(n=N, prompts=PROMPTS):
    return [Request(str(i), prompt, n) for i, prompt in enumerate(prompts)]


def right(completions, prompts=PROMPTS):
    """Whether each completion is the canary's answer to its prompt."""
    return [c.tokens == alphabet.answer(prompts[int(c.id)], len(c.tokens)) for c in completions]


def step_until(session, id, n):
    """Step until a request has emitted `n` tokens; what all have emitted."""
    emitted = {}
    while len(emitted.get(id, ())) < n:
        stepped = session.step()
        assert stepped, f"{id} never emits {n} tokens"
        for name, tokens in stepped.items():
            emitted[name] = (*emitted.get(name, ()), *tokens)
    return emitted


def finish(session):
    while session.step():
        pass
    return list(session.completions())
