import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kvfence.prompts import models
from kvfence.prompts.folder import ModelFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from browsing import CHROMIUM, FLAGS, sync_api  # it skips where there is no playwright

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(10_000)
    yield context.new_page()
    context.close()
