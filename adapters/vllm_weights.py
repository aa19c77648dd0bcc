"""Weights of vLLM that come while it runs: LoRA adapters by name, and other weights of the same model."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from kvfence.adapters.api import Capability, EngineFaultError, Support
from kvfence.adapters.hf_model import first_line
from kvfence.adapters.vllm_core import Core

NO_ADAPTERS = "it was opened without them; engine arguments enable_lora=true and max_lora_rank= let it have some"


class Weights:
    """What an engine computes with beside what it was opened on."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._numbers = count(1)  # a name that is loaded again is another adapter to vLLM
        self.adapters: dict[str, Any] = {}  # vLLM's LoRARequest by name

    @property
    def adapting(self) -> Capability:
        """Whether adapters can be loaded."""
        if self._core.config.lora_config is None:
            return Capability(Support.UNSUPPORTED, NO_ADAPTERS)
        return Capability(Support.SUPPORTED)

    def load(self, name: str, folder: str) -> None:
        """Have requests of that name run with the adapter in `folder`. Raises EngineFaultError."""
        from vllm.lora.request import LoRARequest

        running = self._core.scheduler.requests.values()
        if any(request.lora_request is not None and request.lora_request.lora_name == name for request in running):
            raise EngineFaultError(f"requests run with adapter {name}")
        new = LoRARequest(name, next(self._numbers), folder)
        try:
            self._core.engine.add_lora(new)
        except Exception as error:  # whatever its loaders raise
            raise EngineFaultError(f"vLLM cannot load adapter {name}: {first_line(error)}") from error
        old = self.adapters.get(name)
        self.adapters[name] = new
        if old is not None:
            self._core.engine.remove_lora(old.lora_int_id)

    def exchange(self, folder: str) -> None:
        """Go on with the weights of another folder. Raises EngineFaultError if they are not those of the same model."""
        if _shapes(folder) != _shapes(str(self._core.config.model_config.model)):
            raise EngineFaultError(f"the weights of {folder} are not of the shapes of this model's")
        try:
            self._core.engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        except Exception as error:
            raise EngineFaultError(f"vLLM cannot load {folder}: {first_line(error)}") from error
        # vLLM leaves that to who exchanges them.
        if not self._core.forget():
            raise EngineFaultError("vLLM does not empty its cache: blocks are still held")


def _shapes(folder: str) -> Mapping[str, Any]:
    """Shapes of the tensors in a model folder."""
    from safetensors import safe_open

    shapes: dict[str, Any] = {}
    for file in Path(folder).glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    return shapes
