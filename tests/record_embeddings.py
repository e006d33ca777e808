"""Records what llama.cpp's server gives as embeddings of a few texts, for tests/engine/test_real_embeddings.py.

`python tests/record_embeddings.py LLAMA_SERVER` starts it (`--embedding --pooling last`, then mean) on the model files
in ~/.surefoot/models and writes tests/data/embeddings/NAME.json: the texts, their token ids with special tokens, and
per pooling the vectors as base64 of little-endian float32. Recorded with ggml 0.26.0 on x86-64 with AVX-512.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx

MODELS = Path.home() / ".surefoot" / "models"
NAMES = ("smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m", "qwen2.5-coder-0.5b-instruct-q4_k_m")
OUT = Path(__file__).parent / "data" / "embeddings"
PORT = 18199
TEXTS = [
    "The cat sat on the mat.",
    "A feline rested on the rug.",
    "Stock prices fell sharply on Monday, after the central bank raised its rates.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Žluťoučký kůň pěl ďábelské ódy. 猫は畳の上に座った。",
    " ".join(
        f"Item {i}: the {word} is number {i * 7 % 31}." for i, word in enumerate("apple river stone cloud".split() * 6)
    ),
]


def record(server: str, name: str) -> dict[str, object]:
    """The record of one model."""
    result: dict[str, object] = {"texts": TEXTS, "vectors": {}}
    for pooling in ("last", "mean"):
        command = [server, "-m", str(MODELS / f"{name}.gguf"), "--embedding", "--pooling", pooling]
        process = subprocess.Popen([*command, "--port", str(PORT), "-c", "4096"], stderr=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60) as http:
                _wait(http)
                result["ids"] = [
                    http.post("/tokenize", json={"content": text, "add_special": True, "parse_special": True}).json()[
                        "tokens"
                    ]
                    for text in TEXTS
                ]
                answer = http.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64"}).json()
                entries = sorted(answer["data"], key=lambda entry: entry["index"])
                result["vectors"][pooling] = [entry["embedding"] for entry in entries]  # type: ignore[index]
        finally:
            process.kill()
            process.wait()
    return result


def _wait(http: httpx.Client) -> None:
    for _ in range(240):
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name in NAMES:
        (OUT / f"{name}.json").write_text(json.dumps(record(sys.argv[1], name), ensure_ascii=False, indent=0) + "\n")
        print(name)
