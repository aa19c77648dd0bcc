"""What an installed kvfence is: five packages under one name, and nothing else at the top of site-packages."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # From a copy, so that no build folder is left in the checkout.
    import shutil

    source, out = tmp_path_factory.mktemp("source") / "kvfence", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, source], check=True, capture_output=True
    )
    return next(out.glob("*.whl"))


def test_a_wheel_holds_the_five_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"kvfence"}
    assert {name.split("/")[1] for name in names if name.startswith("kvfence/")} == {
        "adapters",
        "conformance",
        "prompts",
        "reference_impl",
        "reports",
    }
    assert "kvfence/__init__.py" not in names
    data = (
        "conformance/catalogue.toml",
        "reports/schema.json",
        "reports/report.html.jinja",
        "reports/report.css",
        "reports/report.js",
        "adapters/py.typed",
    )
    for name in data:
        assert f"kvfence/{name}" in names
    missing = [
        str(file.relative_to(ROOT))
        for package in ("adapters", "conformance", "prompts", "reference_impl", "reports")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and f"kvfence/{file.relative_to(ROOT)}" not in names
    ]
    assert missing == []


def test_an_installed_wheel_runs_without_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        # An editable install of the checkout would otherwise answer for the wheel.
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import kvfence.adapters.api, kvfence.reports.records as r; print(r.__file__)\n"
        "from kvfence.conformance.catalogue import requirements; assert requirements()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, site], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(site))
