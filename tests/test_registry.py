import pytest

from kvfence.adapters import registry
from kvfence.adapters.api import EngineStartError


def test_installed_adapters_have_names_and_load():
    assert "hf" in registry.names()
    assert callable(registry.load(registry.spec("hf")))


def test_module_and_factory_is_taken_as_it_is():
    assert registry.spec("rogue_engine:open_engine") == "rogue_engine:open_engine"
    assert callable(registry.load("rogue_engine:open_engine"))


def test_unknown_name_says_what_there_is():
    with pytest.raises(EngineStartError, match=r"unknown engine 'vlmm': choose one of .*hf"):
        registry.spec("vlmm")


@pytest.mark.parametrize("spec", ["no_such_module:f", "rogue_engine:no_such", ":", "rogue_engine:"])
def test_what_cannot_be_loaded(spec):
    with pytest.raises(EngineStartError, match="cannot load adapter"):
        registry.load(spec)


def test_what_is_no_factory():
    with pytest.raises(EngineStartError, match="is not callable"):
        registry.load("rogue_engine:__name__")
