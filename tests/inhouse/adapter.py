"""The server of this folder, for kvfence."""

from server import BLOCK, Server

from kvfence.adapters import api


class ServerEngine(api.Engine):
    name, version, block_size = "server", "1.2", BLOCK

    def __init__(self, server: Server):
        self.server = server

    @property
    def capabilities(self):
        return {
            **api.supported("token_prompts", "logprobs", "sharing", "cached_tokens", "reset_cache"),
            **api.unsupported("a call runs to its end", "session", "fork", "preempt", "conversations"),
        }

    def generate(self, requests):
        jobs = self.server.serve([request.prompt for request in requests], max(r.max_tokens for r in requests))
        return [
            api.Completion(r.id, tuple(job["tokens"][:n]), tuple(job["logprobs"][:n]), cached_tokens=job["cached"])
            for r, job in zip(requests, jobs, strict=True)
            for n in [r.max_tokens]
        ]

    def reset_cache(self):
        self.server.blocks.clear()


def open_engine(model: str, config: api.EngineConfig) -> ServerEngine:
    careless = config.engine_args.get("careless") == "yes"
    return ServerEngine(Server(model, config.dtype, config.sharing, careless))
