"""Smallest case: a prompt that is kept as a whole ends the thread in which mlx-lm's server generates.

    python mlx_lm_whole_prompt_kept.py CANARY_FOLDER [PORT]

Prints what three requests are answered. A server without the fault answers each of them with words.
"""

import json
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

import mlx_lm

folder, port = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "18080"
address = f"http://127.0.0.1:{port}/v1"
SECONDS = 60  # to start in


def ask(prompt: str) -> str:
    """What the server answers, or in brackets why it does not."""
    body = {"model": folder, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    sent = Request(f"{address}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(sent, timeout=30) as answer:
            return str(json.load(answer)["choices"][0]["text"])
    except OSError as error:
        return f"[{error}]"


def wait() -> None:
    """Wait until the server listens."""
    for _ in range(SECONDS * 10):
        try:
            urlopen(f"{address}/models", timeout=5).close()
            return
        except URLError:
            time.sleep(0.1)
    sys.exit(f"the server did not start in {SECONDS} s")


command = [sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--port", port]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    wait()
    said = ask("baka bake baki Baka")
    print(f"mlx-lm {mlx_lm.__version__}\nfirst: {said}")
    # What is kept of the first request is its prompt and its answer.
    print("its prompt and answer:", ask(f"baka bake baki Baka {said}"))
    print("somebody else:", ask("bana bane Bana"))
finally:
    server.terminate()
    server.wait()
