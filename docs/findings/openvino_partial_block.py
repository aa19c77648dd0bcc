"""OpenVINO GenAI: two requests that go on from a block which a third has left half full write over each other.

    python docs/findings/openvino_partial_block.py FOLDER

FOLDER is a transformers folder of a Llama; it is converted for the engine, which is then used by itself.
"""

import sys

import numpy as np
import openvino
import openvino_genai as genai

from kvfence.adapters.openvino_model import model_folder

HEAD = [1, *range(100, 109)]  # ten tokens: less than a block


def answer(folder: str, neighbour: int, caching: bool) -> list[int]:
    """The answer to HEAD and 300 to 303, beside a request for HEAD and four tokens from `neighbour` on."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = caching
    pipeline = genai.ContinuousBatchingPipeline(folder, genai.Tokenizer(folder), scheduler, "CPU")

    def ask(*prompts: list[int], new: int) -> list[list[int]]:
        settings = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, eos_token_id=0, stop_token_ids={0})
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(tensors, [settings] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    ask(HEAD, new=1)
    return ask([*HEAD, *range(300, 304)], [*HEAD, *range(neighbour, neighbour + 4)], new=6)[0]


if __name__ == "__main__":
    made = str(model_folder(sys.argv[1]))
    print("openvino-genai", genai.__version__)
    for caching in (False, True):
        for neighbour in (400, 500):
            told = answer(made, neighbour, caching)
            print(f"prefix caching {'on ' if caching else 'off'}, beside {neighbour}..: {told}")
