"""Thousands of requests that are refused, limited, malformed or abandoned: nothing of them stays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
MIB = 1 << 20
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
ROOT = {"Authorization": "Bearer root"}


async def storm(url: str, count: int, seed: int) -> Counter[int | str]:
    """What came of it: statuses, and requests whose client left."""
    dice = random.Random(seed)
    seen: Counter[int | str] = Counter()
    numbers = iter(range(count))

    async def one(http: httpx.AsyncClient, number: int) -> None:
        key = dice.choice(["alpha", "beta", "gamma", "guess"])
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": f"r{number}-{dice.random()}"}
        if dice.random() < 0.2:
            headers["Origin"] = f"https://site{number}.example"
        body: Any = {**CHAT, "stream": dice.random() < 0.5, "n": dice.choice([1, 1, 2, 9])}
        body |= dice.choice([{}, {}, {f"field{number}": 1}, {"temperature": "x"}, {"model": f"m{number}"}])
        path = dice.choice(["/v1/chat/completions"] * 4 + [f"/v1/nothing/{number}", "/tokenize", "/admin/state"])
        try:
            async with asyncio.timeout(dice.uniform(0.001, 0.2) if dice.random() < 0.2 else None):
                answer = await http.post(path, json=body, headers=headers)
            assert answer.status_code < 500, answer.text
            seen[answer.status_code] += 1
        except TimeoutError:
            seen["left"] += 1

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def client() -> None:
            for number in numbers:
                await one(http, number)

        await asyncio.gather(*(client() for _ in range(12)))
    return seen


@pytest.mark.timeout(300)
def test_what_is_refused_leaves_nothing(served: Any, eventually: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha a at-once=2\nbeta b per-minute=60\ngamma c\n")
    keys.chmod(0o600)
    flags = ("--api-key-file", str(keys), "--admin-key", "root", "--max-running", "4", "--max-waiting", "4")
    server = served(TINY, 8 * MIB, *flags, "--cors-origin", "https://site7.example")

    def is_idle() -> bool:
        state = httpx.get(f"{server.url}/admin/state", headers=ROOT).json()
        held = any(blocks["held"] for blocks in state["engine"]["kv_blocks"].values())
        return state["server"]["requests"] == 0 and not held and not state["engine"]["requests"]

    asyncio.run(storm(server.url, 2000, 0))  # touches what is allocated once
    assert eventually(is_idle)
    metrics = httpx.get(f"{server.url}/metrics").text.count("\n")
    before, threads = server.resident(), server.process.num_threads()
    seen = asyncio.run(storm(server.url, 6000, 1))
    assert set(seen) >= {200, 400, 401, 403, 404, 405, 429, "left"}, seen
    assert eventually(is_idle)
    assert server.resident() < before + 6 * MIB
    assert server.process.num_threads() <= threads
    assert eventually(lambda: len(server.process.net_connections()) <= 2)
    assert httpx.get(f"{server.url}/metrics").text.count("\n") <= metrics + 70  # bounded label values
