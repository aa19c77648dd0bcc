import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from kvfence.prompts import models
from kvfence.prompts.folder import ModelFolder

# Before torch is imported, here and in workers: threads of several processes on one core hold each other up.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))
collect_ignore = ["inhouse"]  # a repository of its own, which test_inhouse.py is about
# How long an example takes says nothing on a machine that is busy.
settings.register_profile("kvfence", deadline=None)
settings.load_profile("kvfence")


@pytest.fixture(scope="session")
def canary_folder() -> ModelFolder:
    return models.resolve("canary")


@pytest.fixture(scope="session")
def random_folder() -> ModelFolder:
    return models.resolve("random")


@pytest.fixture(autouse=True)
def engines_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the engines in these folders, and run them on one thread each."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(TESTS), str(EXAMPLES))))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
