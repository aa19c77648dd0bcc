"""vLLM itself, where it is installed: `make engine-vllm` builds an environment for it."""

# ruff: noqa: F401, F811 - fixtures are imported

from importlib.util import find_spec

import pytest
from vllm_engines import (
    BLOCK,
    DEVICE,
    PROMPTS,
    N,
    assert_answers,
    conforms,
    engine,
    finish,
    opened,
    requests,
    small,
    stored,
    used_blocks,
)

from kvfence.adapters.api import (
    CAPABILITIES,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Request,
    Support,
    UnsupportedConfigError,
)
from kvfence.adapters.observation import Action
from kvfence.adapters.vllm import open_engine
from kvfence.conformance.oracles.blocks import Ledger
from kvfence.prompts import alphabet

if find_spec("vllm") is None:
    pytest.skip("vllm is not installed: `make engine-vllm` builds its environment", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")


def test_answers_are_the_canarys_and_hits_are_counted(engine):
    ledger = Ledger()
    for hits in ([0, 64, 64, 0], [64, 64, 64, 0]):
        completions = engine.generate(requests())
        assert_answers({c.id: c for c in completions})
        # Blocks can be found by who comes in the same pass.
        assert [c.cached_tokens for c in completions] == hits
        seen = conforms(engine, requests(), completions, ledger)
        for completion in completions:
            assert stored(seen, completion.id) == len(PROMPTS[int(completion.id)]) + N - 1
            own = [event for event in seen.events if event.request == completion.id]
            reused = sum(event.length for event in own if event.action is Action.REUSE)
            assert reused == completion.cached_tokens
    assert used_blocks(engine) == 0
    engine.reset_cache()
    assert engine.generate(requests()[:1])[0].cached_tokens == 0


def test_without_sharing_nothing_is_found(opened, canary_folder):
    engine = opened(canary_folder, sharing=False, dtype="bfloat16", observe=("events",))
    for _ in range(2):
        completions = engine.generate(requests())
        assert_answers({c.id: c for c in completions})
        assert [c.cached_tokens for c in completions] == [0, 0, 0, 0]
        actions = {event.action for event in conforms(engine, requests(), completions).events}
        assert actions == {Action.ALLOCATE, Action.WRITE, Action.FREE}


def test_a_salt_separates(engine):
    hits = [engine.generate(requests(salt=salt)[:1])[0].cached_tokens for salt in ("x", "x", "y", None, "y", None)]
    assert hits == [0, 64, 0, 0, 64, 64]
    keys = {event.key for event in engine.observe().events if event.action is Action.PUBLISH and event.position == 0}
    assert len(keys) == 3


def test_a_log_that_is_told_otherwise_breaks_a_rule(engine):
    """The positive control of the log: other tokens under the same keys."""
    completions = [*engine.generate(requests()[:1]), *engine.generate(requests()[1:2])]
    tokens = {c.id: [*PROMPTS[int(c.id)], *c.tokens] for c in completions}
    tokens["0"][40] += 1
    (breach,) = Ledger().replay(engine.observe().events, tokens)
    assert (breach.kind, breach.victim, breach.source, breach.cause) == ("key", "1", "0", "token")


def test_the_log_tells_what_vllms_own_events_tell(small, monkeypatch):
    pool = small.core.pool
    monkeypatch.setattr(pool, "enable_kv_cache_events", True)
    monkeypatch.setattr(pool, "take_events", list)  # nobody else is told
    small.generate(requests(40))
    told = {"BlockStored": [], "BlockRemoved": []}
    for event in pool.kv_event_queue:
        told[type(event).__name__] += [f"{hash:016x}"[-16:] for hash in event.block_hashes]
    pool.kv_event_queue.clear()
    events = small.observe().events
    published = [event for event in events if event.action is Action.PUBLISH]
    # To the world vLLM tells the end of a hash.
    assert [event.key[-16:] for event in published] == told["BlockStored"]
    keys, withdrawn = {}, []
    for event in events:
        if event.action is Action.PUBLISH:
            keys[event.slot] = event.key[-16:]
        elif event.action is Action.EVICT:
            withdrawn.append(keys[event.slot])
    assert withdrawn == told["BlockRemoved"]
    assert len(published) > len(withdrawn) > 0


@pytest.mark.parametrize("state", ["waiting", "half prefilled", "decoding", "the first of its blocks"])
def test_a_cancelled_request_is_gone_and_hurts_nobody(engine, small, state):
    chosen = small if state == "half prefilled" else engine
    session = chosen.session()
    sent = [Request("gone", PROMPTS[2], 60)]
    if state == "waiting":
        sent = [*requests(), *sent]
    for request in sent:
        session.submit(request)
    ran = session.step()
    if state == "the first of its blocks":
        session.submit(requests()[0])
        ran = session.step()
    assert bool(ran.get("gone")) == (state in ("decoding", "the first of its blocks"))
    session.cancel("gone")
    (manager,) = chosen.core.managers
    assert not [id for id in manager.req_to_blocks if id.startswith("gone")]
    used_blocks(chosen)
    # It may come again, under the same name.
    session.submit(Request("gone", PROMPTS[3], N))
    session.submit(requests()[1] if state != "waiting" else Request("more", PROMPTS[1], N))
    done = finish(session)
    assert done.pop("gone").tokens == alphabet.answer(PROMPTS[3], N)
    done.pop("more", None)
    assert len(done) >= 1
    assert_answers(done)
    assert used_blocks(chosen) == 0
    session.cancel("0")  # ended already, or never there: nothing to do


def test_a_small_pool_preempts_and_that_harms_nobody(small):
    assert small.core.capacity == 6 * BLOCK
    session = small.session()
    sent = [Request(str(i), PROMPTS[i], 50) for i in range(4)]
    for request in sent:
        session.submit(request)
    done = finish(session)
    assert_answers(done, 50)
    assert len(done) == 4
    seen = conforms(small, sent, done.values())
    # Who was put back let go of blocks and was handed new ones.
    frees = {id: {e.step for e in seen.events if e.request == id and e.action is Action.FREE} for id in done}
    assert max(map(len, frees.values())) > 1
    assert Action.EVICT in {event.action for event in seen.events}
    for id, completion in done.items():
        assert len(seen.attention[id].rows) == len(completion.logprobs) == 50
        assert stored(seen, id) == len(PROMPTS[int(id)]) + 49
    assert used_blocks(small) == 0


def test_what_can_never_fit_is_refused(small, opened, canary_folder):
    session = small.session()
    session.submit(requests()[3])
    with pytest.raises(RefusedError, match=r"^request long needs 204 tokens of KV; the pool has 192$"):
        session.submit(Request("long", PROMPTS[0], 204 - len(PROMPTS[0]) + 1))
    with pytest.raises(RefusedError, match="request 3 is running already"):
        session.submit(requests()[3])
    with pytest.raises(RefusedError, match="adapter nobody's, which is not loaded"):
        session.submit(Request("a", PROMPTS[3], 2, adapter="nobody's"))
    with pytest.raises(RefusedError, match="request empty was not accepted"):
        session.submit(Request("empty", (), 2))
    with pytest.raises(EngineFaultError, match="one at a time"):
        small.session()
    assert_answers(finish(session))
    assert used_blocks(small) == 0
    # vLLM would take what is longer than it goes, and cut the answer.
    session = opened(canary_folder, engine_args={"max_model_len": "128"}).session()
    with pytest.raises(RefusedError, match=r"^request long has 129 tokens; the engine takes 128$"):
        session.submit(Request("long", PROMPTS[0], 129 - len(PROMPTS[0])))
    session.submit(Request("0", PROMPTS[0], 128 - len(PROMPTS[0])))
    assert_answers(finish(session), 128 - len(PROMPTS[0]))


def test_a_pass_that_broke_off_leaves_nothing_behind(engine, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine.core.runner, "_model_forward", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(EngineFaultError, match="vLLM broke off: division by zero"):
            engine.generate(requests())
    assert used_blocks(engine) == 0
    completions = engine.generate(requests())
    assert_answers({c.id: c for c in completions})
    assert completions[0].cached_tokens == 0


def test_a_reset_puts_back_who_runs(engine):
    session = engine.session()
    for request in requests():
        session.submit(request)
    session.step()
    engine.reset_cache()
    done = finish(session)
    assert_answers(done)
    assert len(done) == 4
    conforms(engine, requests(), done.values())
    assert used_blocks(engine) == 0


def test_capabilities(engine):
    capabilities = engine.capabilities
    assert capabilities.keys() == CAPABILITIES.keys()
    lacking = {name for name, c in capabilities.items() if c.state is not Support.SUPPORTED}
    assert lacking == {"reopen", "preempt", "fork", "conversations", "adapters", "media"}
    assert all(capabilities[name].state is Support.UNSUPPORTED and capabilities[name].reason for name in lacking)
    assert engine.block_size == BLOCK


def test_configurations_it_does_not_have(canary_folder):
    def opening(**config):
        open_engine(str(canary_folder.path), EngineConfig(**{"device": DEVICE, **config}))

    with pytest.raises(UnsupportedConfigError, match="vllm has no dtype int8; it has float32"):
        opening(dtype="int8")
    with pytest.raises(UnsupportedConfigError, match=f"this vllm runs on {DEVICE}, not on tpu"):
        opening(device="tpu")
    with pytest.raises(EngineStartError, match="vllm has no engine argument pages"):
        opening(engine_args={"pages": "2"})
    with pytest.raises(EngineStartError, match=r"vllm cannot be opened on .*/nowhere"):
        open_engine("/nowhere", EngineConfig(device=DEVICE))
