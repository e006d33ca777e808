"""Minutes on a real model and thousands of requests on a tiny one: nothing stays behind, and every answer is right."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_models import SMOL, real_model
from server_process import MIB

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "oracle" / "qwen3" / "model.gguf"


def test_ready_soon_and_small(served: Any) -> None:
    """Ready within 3 s, the file cached, on a machine with a core to spare; resident at most file, cache and 250 MB."""
    path = real_model(SMOL)
    starts = [served(path, 64 * MIB) for _ in range(3)]
    crowding = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert min(server.ready_s for server in starts) < 3.0 * crowding
    for server in starts:
        body = {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 30}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        assert server.resident() < path.stat().st_size + 64 * MIB + 250e6


def test_recorded_chats_over_http(served: Any) -> None:
    """Prompt ids exactly, then the greedy tokens as far as the recorded margins are beyond rounding."""
    recorded = json.loads((DATA / "real" / "smollm2-135m-instruct-q4_1.json").read_text())
    server = served(real_model(SMOL), 256 * MIB)
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for chat in recorded["chat"]:
            ids = http.post("/tokenize", json={"messages": chat["messages"]}).json()["tokens"]
            assert ids == chat["prompt_ids"]
            clear = []
            for step in chat["steps"]:
                if step["top"][0][1] - step["top"][1][1] < 0.3:
                    break
                clear.append(step["id"])
            if not clear:
                continue
            body = {"messages": chat["messages"], "temperature": 0, "max_tokens": len(clear), "return_token_ids": True}
            choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
            assert choice["token_ids"] == clear[: len(choice["token_ids"])]


async def _with_disconnects(url: str, count: int, width: int, seed: int) -> dict[str, int]:
    """`count` requests of many kinds from `width` clients; about half leave at a random moment."""
    dice, results = random.Random(seed), {"answered": 0, "left": 0}
    numbers = iter(range(count))

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            for number in numbers:
                words = " ".join(f"word{dice.randrange(50)}" for _ in range(dice.choice([2, 8, 30])))
                body = {
                    "messages": [{"role": "user", "content": words}],
                    "max_tokens": dice.choice([1, 4, 8]),
                    "stream": dice.random() < 0.6,
                    "n": dice.choice([1, 1, 1, 2]),
                    "seed": number,
                }
                try:
                    async with asyncio.timeout(dice.uniform(0.01, 0.5) if dice.random() < 0.5 else None):
                        response = await http.post("/v1/chat/completions", json=body)
                    assert response.status_code == 200, response.text
                    assert "event: error" not in response.text
                    results["answered"] += 1
                except TimeoutError:
                    results["left"] += 1

    await asyncio.gather(*(client() for _ in range(width)))
    return results


@pytest.mark.timeout(900)
def test_a_thousand_requests_with_random_disconnects(served: Any, eventually: Any) -> None:
    server = served(real_model(SMOL), 32 * MIB, "--max-running", "8")  # a cache that the first requests fill
    asyncio.run(_with_disconnects(server.url, 200, 8, seed=0))  # touches what is allocated once
    assert eventually(server.idle, 60)
    threads, resident = server.process.num_threads(), server.resident()
    results = asyncio.run(_with_disconnects(server.url, 1000, 8, seed=1))
    assert results["answered"] > 100
    assert results["left"] > 100
    assert eventually(server.idle, 60)
    assert server.process.num_threads() <= threads
    assert server.resident() < resident + 16 * MIB
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.timeout(600)
def test_five_thousand_small_requests_keep_memory_flat(served: Any) -> None:
    server = served(TINY, 8 * MIB)

    async def burst(count: int) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            numbers = iter(range(count))

            async def client() -> None:
                for number in numbers:
                    body = {"prompt": [number % 900 + 1, 5, 6], "max_tokens": 1}
                    assert (await http.post("/v1/completions", json=body)).status_code == 200

            await asyncio.gather(*(client() for _ in range(8)))

    asyncio.run(burst(1000))
    before = server.resident()
    asyncio.run(burst(5000))
    assert server.idle()
    assert server.resident() < before + 8 * MIB
