"""The house rules that a machine can check: which package may import which, and how long a file may be."""

import ast
import subprocess
from pathlib import Path

import pytest

from kvfence.conformance import search
from kvfence.conformance.catalogue import requirements
from kvfence.conformance.scenarios import REPERTOIRE, cells

ROOT = Path(__file__).parent.parent
PACKAGES = ("prompts", "reference_impl", "adapters", "reports", "conformance")
ALLOWED = {
    "prompts": {"prompts"},
    "reference_impl": {"reference_impl"},
    "reports": {"reports"},
    "adapters": {"adapters", "reference_impl"},
    "conformance": {"conformance", "prompts", "adapters", "reports", "reference_impl"},
}
FILES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
OTHERS = [file for folder in ("tests", "benchmarks", "docs") for file in sorted((ROOT / folder).rglob("*.py"))]


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("kvfence.")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_down_only(file):
    package = file.relative_to(ROOT).parts[0]
    assert imported(file) <= ALLOWED[package]


def test_of_reference_impl_adapters_take_only_the_view_into_attention():
    modules = {
        node.module
        for file in (ROOT / "adapters").glob("*.py")
        if not file.name.startswith("reference")  # the engine's own adapter
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvfence.reference_impl")
    }
    assert modules == {"kvfence.reference_impl.attention"}


def test_planted_faults_are_known_to_the_score_alone():
    users = [file for file in FILES if "reference_impl.defects" in file.read_text(encoding="utf-8")]
    outside = [file for file in users if "defects" not in file.parts]
    assert outside == [ROOT / "conformance" / "faults.py"]


@pytest.mark.parametrize("file", [*FILES, *OTHERS], ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_is_at_most_300_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300


def test_every_package_that_exists_is_under_these_rules():
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == set(ALLOWED)
    # A positive control: the arrows are really seen.
    assert set().union(*map(imported, (ROOT / "conformance").glob("*.py"))) == ALLOWED["conformance"]


def test_every_test_of_the_suite_has_a_requirement_of_the_catalogue():
    """A test names it, or takes scenarios, each of which does; and no requirement is without."""
    marked = []
    for file in (ROOT / "conformance").glob("test_*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                decorators = [ast.unparse(d) for d in node.decorator_list]
                if "pytest.mark.mode('scenario')" in decorators:
                    continue
                marks = [mark for mark in decorators if "mark.requirement" in mark]
                assert len(marks) == 1, f"{file.name}:{node.name}"
                marked.append(marks[0].split("'")[1])
    assert len(marked) == len(set(marked))
    scenarios = set(map(REPERTOIRE.requirement, REPERTOIRE.names()))
    assert {*marked, *scenarios, search.REQUIREMENT, cells.REQUIREMENT} == set(requirements())


def test_nothing_of_a_workplace_is_tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("not a git checkout")
    assert not [name for name in listed if name.endswith((".safetensors", ".gguf", ".whl", ".ndjson"))]
