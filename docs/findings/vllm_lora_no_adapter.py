"""vLLM on a CPU: a request without an adapter is computed with the one that others in its batch are for.

    python docs/findings/vllm_lora_no_adapter.py FOLDER

FOLDER is a transformers folder of a Llama. An adapter is made for it that takes all values away.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import vllm
from safetensors.torch import load_file, save_file
from vllm.lora.request import LoRARequest

PROMPT = [1, *range(100, 140), 3, 1411]


def adapter(model: Path, folder: Path) -> Path:
    """A LoRA adapter that subtracts the projections of values from themselves."""
    factors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.endswith("v_proj.weight"):
            prefix, rank = f"base_model.model.{name.removesuffix('.weight')}", weight.shape[1]
            factors[f"{prefix}.lora_A.weight"] = torch.eye(rank)
            factors[f"{prefix}.lora_B.weight"] = -weight.float()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": ["v_proj"]}
    folder.mkdir(exist_ok=True)
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def main(model: Path) -> None:
    """Ask the base model alone, and beside a request for the adapter."""
    with tempfile.TemporaryDirectory() as scratch:
        lora = LoRARequest("a", 1, str(adapter(model, Path(scratch) / "a")))
        engine = vllm.LLM(
            str(model), dtype="float32", enable_lora=True, max_lora_rank=256, enforce_eager=True,
            enable_prefix_caching=False, max_model_len=256, skip_tokenizer_init=True,
        )  # fmt: skip
        greedy = vllm.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
        prompt = {"prompt_token_ids": PROMPT}

        def ask(*adapters: LoRARequest | None) -> list[int]:
            answers = engine.generate([prompt] * len(adapters), greedy, use_tqdm=False, lora_request=list(adapters))
            return list(answers[0].outputs[0].token_ids)

        print("vllm", vllm.__version__)
        print("without an adapter, alone:                  ", ask(None))
        print("with the adapter:                           ", ask(lora))
        print("without, beside a request without:          ", ask(None, None))
        print("without, beside a request with the adapter: ", ask(None, lora))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
