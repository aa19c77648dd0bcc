"""What an engine answers, checked: nonsense is told in a line, and judged by nobody."""

from collections.abc import Sequence

from kvfence.adapters.api import Completion, EngineFaultError, Request
from kvfence.adapters.observation import TOP, Attention, CacheEvent, Observed


def check_completions(requests: Sequence[Request], completions: object, vocabulary: int) -> list[Completion]:
    """The completions in the order of the requests, or EngineFaultError saying how they are not an answer to them."""
    completions = check_answer(completions)
    by_id = {completion.id: completion for completion in completions}
    if len(completions) != len(requests) or by_id.keys() != {request.id for request in requests}:
        raise EngineFaultError(f"{len(requests)} requests got {len(completions)} completions, ids {sorted(by_id)}")
    ordered = [by_id[request.id] for request in requests]
    for request, completion in zip(requests, ordered, strict=True):
        check_completion(request, completion, vocabulary)
    return ordered


def check_answer(answer: object) -> Sequence[Completion]:
    """What `generate` has answered. Raises EngineFaultError where that is of another type."""
    if isinstance(answer, Sequence):
        if not (odd := [one for one in answer if not isinstance(one, Completion)]):
            return answer
        raise EngineFaultError(f"generate() must return Completions, not {type(odd[0]).__name__}")
    raise EngineFaultError(f"generate() must return a sequence of Completion, not {type(answer).__name__}")


def check_observed(requests: Sequence[Request], observed: object) -> Observed:
    """What was observed during one call, or EngineFaultError saying how it cannot be about these requests."""
    if not isinstance(observed, Observed):
        raise EngineFaultError(f"observe() must return an Observed, got {type(observed).__name__}")
    for seen, kind in ((observed.attention.values(), Attention), (observed.events, CacheEvent)):
        if odd := [one for one in seen if not isinstance(one, kind)]:
            raise EngineFaultError(f"observe() must show each {kind.__name__} as such, got {type(odd[0]).__name__}")
    tokens = {request.id: request.max_tokens for request in requests}
    for id, attention in observed.attention.items():
        if id in tokens and (n := len(attention.rows)) != tokens[id]:
            raise EngineFaultError(f"request {id} got {tokens[id]} tokens but attention of {n} steps")
        shape = attention.maximum.shape
        others = (attention.rows.shape[:-1], attention.entropy.shape, attention.top.shape[:-1])
        if len(shape) != 3 or any(other != shape for other in others) or attention.top.shape[-1] != TOP:
            raise EngineFaultError(f"attention of request {id} is not of [steps, layers, heads] throughout")
    return observed


def check_completion(request: Request, completion: Completion, vocabulary: int) -> None:
    """Raise EngineFaultError, saying how, if a completion is no answer to a request."""
    id, tokens = request.id, completion.tokens
    if not isinstance(tokens, Sequence):
        raise EngineFaultError(f"request {id} got tokens of type {type(tokens).__name__}, not a tuple")
    if len(tokens) != request.max_tokens:
        raise EngineFaultError(f"request {id} got {len(tokens)} tokens instead of {request.max_tokens}")
    for token in tokens:
        if not isinstance(token, int):
            raise EngineFaultError(f"request {id} got token {token!r} of type {type(token).__name__}, not int")
        if not 0 <= token < vocabulary:
            raise EngineFaultError(f"request {id} got token {token!r} outside the vocabulary of {vocabulary}")
    _check_logprobs(request, completion)
    cached = completion.cached_tokens
    if cached is not None and not isinstance(cached, int):
        raise EngineFaultError(f"request {id} got {cached!r} cached tokens, not an int")
    # A conversation's history is cached too, and its length is the engine's to know.
    if cached is not None and (cached < 0 or (request.conversation is None and cached > len(request.prompt))):
        raise EngineFaultError(f"request {id} got {cached} cached tokens of a prompt of {len(request.prompt)}")


def _check_logprobs(request: Request, completion: Completion) -> None:
    for name in ("logprobs", "top_logprobs"):
        values = getattr(completion, name)
        if values is None:
            continue
        if not isinstance(values, Sequence) or len(values) != len(completion.tokens):
            told = len(values) if isinstance(values, Sequence) else type(values).__name__
            raise EngineFaultError(f"request {request.id} got {told} {name} for {len(completion.tokens)} tokens")
        try:
            flat = values if name == "logprobs" else [value for best in values for _, value in best]
        except (TypeError, ValueError):
            raise EngineFaultError(f"request {request.id} got top_logprobs that are not (token, nats)") from None
        # NaN is an answer, and a wrong one: golden's to tell.
        if odd := [value for value in flat if not isinstance(value, float | int)]:
            raise EngineFaultError(f"request {request.id} got {name} with {odd[0]!r}, which is no number")
