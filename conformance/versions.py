"""Versions of what a run is made with, and what the environment says to it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("kvfence", "torch", "transformers", "tokenizers", "numpy")
PRIVATE = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def package_versions() -> dict[str, str]:
    """Versions by package, Python's first; nothing is imported for it."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, str]:
    """Every variable KVFENCE_*; of one that sounds private only that it is set."""
    ours = {name: value for name, value in sorted(os.environ.items()) if name.startswith("KVFENCE_")}
    return {name: "(set)" if any(word in name for word in PRIVATE) else value for name, value in ours.items()}
