"""Schedule files: a scenario as JSON, to be replayed on any engine, and as a few lines of text, to be read."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from kvfence.adapters.api import Media, Request
from kvfence.adapters.schedule import Moment, Operation, Verb
from kvfence.conformance.oracles.side import common
from kvfence.conformance.scenarios.scenario import Scenario, Setup
from kvfence.conformance.settings import KNOWN_DTYPES, UsageError
from kvfence.prompts.mirror import Part
from kvfence.prompts.prompt import Prompt

KIND, SCHEMA = "kvfence-schedule", 1

Mirror = Callable[[Part, str], Path]  # the folder of a mirror of the model: as an "adapter" or as a "model"


def dumps(scenario: Scenario) -> str:
    """A scenario as JSON, an operation a line. Requests go by their short names; mirrors by what is turned around."""
    head = {
        "kind": KIND,
        "schema": SCHEMA,
        "name": scenario.name,
        "requirement": scenario.requirement,
        "dtype": scenario.dtype,
        "layout": scenario.layout,
        "setup": asdict(scenario.setup),
        "hits": list(scenario.hits),
        **({"refused": list(scenario.refused)} if scenario.refused else {}),
    }
    told = [json.dumps(_told(scenario, operation), ensure_ascii=False) for operation in scenario.schedule]
    body = ",\n".join(f"    {line}" for line in told)
    opening = json.dumps(head, ensure_ascii=False, indent=2).removesuffix("\n}")
    return f'{opening},\n  "operations": [\n{body}\n  ]\n}}\n'


def _told(scenario: Scenario, operation: Operation) -> dict[str, Any]:
    """One operation, without what it has none of."""
    short = scenario.short
    told: dict[str, Any] = {"do": str(operation.verb)}
    request = operation.request
    if operation.target:
        told["target"] = short(operation.target)
    if request:
        prompt = scenario.prompts[short(request.id)]
        told |= {"prompt": list(request.prompt), "prefix": prompt.prefix_tokens, "max_tokens": request.max_tokens}
        told |= {"secret": list(prompt.secret), "words": list(prompt.words), "group": prompt.group}
        told |= {name: getattr(request, name) for name in ("salt", "adapter") if getattr(request, name) is not None}
        if request.media:
            told["media"] = [asdict(media) for media in request.media]
        if request.conversation is not None:
            told["conversation"] = short(request.conversation)
    if operation.tokens:
        told["tokens"] = list(operation.tokens)
    if operation.folder and Path(operation.folder) != scenario.model:
        told["mirror"] = Path(operation.folder).name.partition("-")[0]
    if operation.when:
        told["when"] = {"request": short(operation.when.request)}
        if operation.when.tokens is not None:
            told["when"]["tokens"] = operation.when.tokens
    return told


def loads(text: str, file: str, model: Path, mirror: Mirror) -> Scenario:
    """The scenario that `dumps` has written. Raises UsageError, a line that says what is wrong, for what is none."""
    try:
        data = json.loads(text)
    except ValueError as error:
        where = "a run leaves them in its report folder, under schedules/"
        raise UsageError(f"{file} is no schedule: it is no JSON ({error}); {where}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f"{file} is no schedule: its kind is not {KIND}")
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{file} is a schedule of schema {data.get('schema')}; this kvfence reads {SCHEMA}")
    try:
        return _Reader(data, model, mirror).scenario()
    except KeyError as error:
        raise UsageError(f"{file} is no schedule: {error.args[0]} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{file} is no schedule: {error}") from error


TYPES = {"name": str, "requirement": str, "dtype": str, "layout": str, "setup": dict, "operations": list, "hits": list}
NAMES = {str: "string", dict: "table", list: "list"}


class _Reader:
    """A schedule that is being read. Raises KeyError, TypeError or ValueError for what does not belong in one."""

    def __init__(self, data: Mapping[str, Any], model: Path, mirror: Mirror) -> None:
        self._data, self._model, self._mirror = data, model, mirror
        self._id = f"{data['name']}-{data['dtype']}"
        self._prompts: dict[str, Prompt] = {}

    def scenario(self) -> Scenario:
        data = self._data
        for key, kind in TYPES.items():
            if not isinstance(data[key], kind):
                raise TypeError(f"{key} must be a {NAMES[kind]}, not {data[key]!r}")
        if data["dtype"] not in KNOWN_DTYPES:
            raise ValueError(f"its dtype {data['dtype']} is none of {', '.join(KNOWN_DTYPES)}")
        known = {field.name for field in fields(Setup)}
        if unknown := set(data["setup"]) - known:
            raise ValueError(f"a setup has no {', '.join(sorted(unknown))}")
        schedule = tuple(self._operation(i, told) for i, told in enumerate(data["operations"], 1))
        if not self._prompts:
            raise ValueError("it submits nothing")
        scenario = Scenario(
            name=data["name"],
            requirement=data["requirement"],
            setup=Setup(**data["setup"]),
            dtype=data["dtype"],
            layout=data["layout"],
            schedule=schedule,
            prompts=self._prompts,
            hits=tuple(name for name in data["hits"] if self._known(name)),
            model=self._model,
            refused=tuple(name for name in data.get("refused", ()) if self._known(name)),
        )
        if lost := scenario.unprovided:
            name = scenario.short(lost.id)
            raise ValueError(f"request {name} is for adapter {lost.adapter}, which nothing before it loads")
        return scenario

    def _operation(self, place: int, told: Mapping[str, Any]) -> Operation:
        try:
            verb = Verb(told["do"])
        except ValueError as error:
            raise ValueError(f"operation {place} does {told['do']!r}, which is none of {', '.join(Verb)}") from error
        target = self._name(told["target"]) if "target" in told else ""
        if verb is Verb.ADAPTER:
            target = str(told["target"])
        when = self._moment(told["when"]) if "when" in told else None
        if verb in (Verb.CANCEL, Verb.FORK, Verb.PREEMPT):
            self._known(told["target"])
        request = self._request(told) if verb is Verb.SUBMIT else None
        return Operation(verb, target, when, request, _numbers(told.get("tokens", ())), self._folder(verb, told))

    def _request(self, told: Mapping[str, Any]) -> Request:
        name, tokens = str(told["target"]), _numbers(told["prompt"])
        if name in self._prompts:
            raise ValueError(f"request {name} is submitted twice")
        words = (tuple(map(str, told.get(kind, ()))) for kind in ("words", "secret"))
        self._prompts[name] = Prompt(name, str(told.get("group", "")), tokens, int(told["prefix"]), *words)
        talk = told.get("conversation")
        return Request(
            self._name(name),
            tokens,
            int(told["max_tokens"]),
            told.get("salt"),
            told.get("adapter"),
            tuple(Media(**media) for media in told.get("media", ())),
            None if talk is None else self._name(talk),
        )

    def _moment(self, told: Mapping[str, Any]) -> Moment:
        self._known(told["request"])
        return Moment(self._name(told["request"]), told.get("tokens"))

    def _folder(self, verb: Verb, told: Mapping[str, Any]) -> str:
        if verb not in (Verb.ADAPTER, Verb.WEIGHTS):
            return ""
        if "mirror" not in told:
            return str(self._model)
        return str(self._mirror(Part(told["mirror"]), "adapter" if verb is Verb.ADAPTER else "model"))

    def _known(self, name: str) -> bool:
        """Whether a request, or the parent of a fork, was submitted before. Raises ValueError if not."""
        if name not in self._prompts and name.rpartition(".")[0] not in self._prompts:
            raise ValueError(f"request {name} is named before it is submitted")
        return True

    def _name(self, name: object) -> str:
        return f"{self._id}/{name}"


def _numbers(tokens: Any) -> tuple[int, ...]:
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise ValueError("tokens must be a list of token ids")
    return tuple(tokens)


def lines(scenario: Scenario) -> Iterator[str]:
    """A scenario to be read: how the engine is set up, then an operation a line."""
    setup, short = scenario.setup, scenario.short
    sizes = {"pool of {} tokens": setup.pool, "chunks of {} tokens": setup.chunk}
    told = ["sharing" if setup.sharing else "no sharing", f"{setup.concurrency} at once"]
    yield ", ".join(told + [text.format(size) for text, size in sizes.items() if size])
    for operation in scenario.schedule:
        when = operation.when
        after = "" if when is None else f" when {short(when.request)} has " + _reached(when)
        yield _sentence(scenario, operation) + after


def _reached(when: Moment) -> str:
    return "ended" if when.tokens is None else f"emitted {when.tokens}"


def _sentence(scenario: Scenario, operation: Operation) -> str:
    target = scenario.short(operation.target)
    match operation.verb:
        case Verb.SUBMIT:
            assert operation.request is not None
            return f"submit {target}: {_asked(scenario, operation.request)}"
        case Verb.FORK:
            return f"fork {target} into {len(operation.tokens)}"
        case Verb.EDIT:
            return f"edit the history of {target} to {len(operation.tokens)} tokens"
        case Verb.ADAPTER:
            return f"load adapter {operation.target}"
        case Verb.WEIGHTS:
            own = Path(operation.folder) == scenario.model
            return f"go on with {'its own' if own else 'other'} weights"
        case Verb.RESET:
            return "forget everything cached"
        case Verb.STEP:
            return "step"
        case _:
            return f"{operation.verb} {target}"


def _asked(scenario: Scenario, request: Request) -> str:
    """What a request asks, and with whom it has its first tokens in common."""
    told = [f"{len(request.prompt)} tokens"]
    if before := _longest_common(scenario, request):
        told.append("the first {} as {}".format(*before))
    told.append(f"{request.max_tokens} new")
    told += [f"{name} {getattr(request, name)}" for name in ("salt", "adapter") if getattr(request, name) is not None]
    if request.media:
        told.append(f"media {', '.join(media.content for media in request.media)}")
    if request.conversation is not None:
        told.append(f"in conversation {scenario.short(request.conversation)}")
    return ", ".join(told)


def _longest_common(scenario: Scenario, request: Request) -> tuple[int, str] | None:
    """Most tokens that a prompt begins with as an earlier one does, beyond the first, and whose that is."""
    best: tuple[int, str] | None = None
    for operation in scenario.schedule:
        other = operation.request
        if other is request:
            return best
        if other:
            n = common(request.prompt, other.prompt)
            if n > max(1, best[0] if best else 0):
                best = n, scenario.short(other.id)
    return best
