"""vLLM with a fault planted in it: one that the suite must see.

Engine argument `fault`: "salt" forgets the salt in the keys of blocks; "table" names, in the block tables of one pass,
a neighbour's first block in the place of a request's own.
"""

from dataclasses import replace

from kvfence.adapters.hf_blocks import wrap
from kvfence.adapters.vllm import open_engine as open_right

AT = 9  # the pass of several requests that reads the wrong block


def open_engine(model, config):
    arguments = dict(config.engine_args)
    plant = {"salt": forget_salt, "table": exchange_block}[arguments.pop("fault")]
    engine = open_right(model, replace(config, engine_args=arguments))
    plant(engine)
    return engine


def forget_salt(engine):
    from vllm.v1.core import kv_cache_utils

    def saltless(method, request, *args):
        salt, request.cache_salt = request.cache_salt, None
        try:
            return method(request, *args)
        finally:
            request.cache_salt = salt

    wrap(kv_cache_utils, "generate_block_hash_extra_keys", saltless)


def exchange_block(engine):
    passes = 0

    def exchanged(method, *args, **kwargs):
        nonlocal passes
        metadata, others = method(*args, **kwargs)
        passes += kwargs["num_reqs"] > 1
        if passes == AT:
            for one in metadata.values():
                one.block_table = one.block_table.clone()  # the next pass has its own again
                one.block_table[0, 0] = one.block_table[1, 0]
        return metadata, others

    wrap(engine.core.runner, "_build_attention_metadata", exchanged)
