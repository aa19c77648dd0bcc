"""mlx-lm: with a draft model its server keeps a cache that lacks the last token of those it is filed under.

    python mlx_lm_draft_short_cache.py CANARY_FOLDER DRAFT_FOLDER [PORT]

DRAFT_FOLDER is a model whose drafts are rejected, such as random weights. The second prompt has all but its last words
in common with the first one, and is right if it is answered with the word that follows: `Bane`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

import mlx_lm

folder, draft, port = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "18080"
address = f"http://127.0.0.1:{port}/v1"
SECONDS = 60  # to start in
SHARED = "baka bake baki bako baku baky bana bane"


def ask(prompt: str) -> str:
    """What the server answers."""
    body = {"model": folder, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    sent = Request(f"{address}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(sent, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


@contextmanager
def server(*options: str) -> Iterator[None]:
    """The server, once it listens."""
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--port", port, *options]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(SECONDS * 10):
            try:
                urlopen(f"{address}/models", timeout=5).close()
                break
            except URLError:
                time.sleep(0.1)
        else:
            sys.exit(f"the server did not start in {SECONDS} s")
        yield
    finally:
        running.terminate()
        running.wait()


print(f"mlx-lm {mlx_lm.__version__}")
for name, options in (("no draft model", ()), ("with a draft model", ("--draft-model", draft))):
    with server(*options):
        print(f"{name}, alone:", ask(f"{SHARED} basa base <ask> Bana"))
    with server(*options):
        ask(f"{SHARED} bava bave <ask> Baka")
        print(f"{name}, after another with its first words:", ask(f"{SHARED} basa base <ask> Bana"))
