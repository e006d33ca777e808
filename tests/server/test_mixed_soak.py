"""Everything at once for minutes: no wrong text, no 5xx, memory flat, blocks back to where they were.

Each kind of request is first answered alone and without speculation; then sixteen clients send them all, streamed and
whole, leave some in the middle, send nonsense, and an operator keeps changing the policy. Every answer that was not
left must equal the lonely one, token by token. `SOAK_SECONDS=1200` makes it a long one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from real_models import CODER, real_model
from server_process import MIB, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
CLIENTS = 16
LEAVES = 0.15  # of requests, at a random moment
NONSENSE = 0.1

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "likes": {"type": "array", "maxItems": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REPORT = " ".join(f"Line {i}: the pump of hall {i % 7} ran {i * 37 % 90} minutes." for i in range(90))

POLICIES: list[dict[str, Any]] = [
    {"enabled": False},
    {"enabled": True},
    {"draft_tokens": 2},
    {"draft_tokens": 16, "max_batch": 16},
    {"governor": "off", "max_batch": 1},
    {"governor": "probe"},
    {"governor": "cost", "draft_tokens": 8},
]

BAD: list[tuple[str, bytes]] = [
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", b"\xff\xfe"),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -2}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "guided_regex": "a"}'),
    ("/v1/completions", b'{"prompt": [999999999]}'),
    ("/v1/responses", b'{"input": "x", "previous_response_id": "resp_nope"}'),
    ("/v1/responses", b'{"input": [{"type": "computer_call"}]}'),
    ("/v1/completions", b'{"prompt": "x", "logit_bias": {"AI": -100}}'),
    ("/v1/completions", b"[" * 5000 + b"]" * 5000),
    ("/v1/nothing", b"{}"),
]


def _chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40, **fields}
    return "/v1/chat/completions", {**body, "return_token_ids": True}


def _requests() -> list[tuple[str, dict[str, Any]]]:
    """Some of each kind. A small KV cache makes their prefixes come and go."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    cases = [_chat(f"Count from {n} upwards.", max_tokens=24 + n) for n in range(6)]
    cases += [_chat("Write a line about the sea.", temperature=0.8, seed=seed) for seed in range(4)]
    cases += [_chat(f"Repeat exactly: {REPORT[: 300 * n]}", max_tokens=60) for n in (1, 2, 3)]
    cases += [_chat(f"{REPORT}\nWhich hall ran longest on line {n}?", max_tokens=20) for n in range(3)]
    cases += [_chat("What is the weather in Oslo?", tools=[WEATHER], tool_choice="required")]
    cases += [_chat(f"Will it rain in {city}?", tools=[WEATHER]) for city in ("Bern", "Kiel")]
    cases += [_chat(f"Invent a person called {name}.", response_format=schema) for name in ("Ada", "Bo", "Cem")]
    cases += [_chat("Give me JSON about a cat.", response_format={"type": "json_object"}, max_tokens=60)]
    cases += [_chat("Say ha ha ha ha ha.", stop=[" ha ha ha"], frequency_penalty=-0.5)]
    cases += [_chat("Two words.", n=2, temperature=1.0, seed=5, logprobs=True, top_logprobs=2)]
    cases += [_chat("Write fibonacci in Python.", repetition_penalty=1.1, min_tokens=10, max_tokens=50)]
    text = {"temperature": 0, "max_tokens": 30, "return_token_ids": True}
    cases += [("/v1/completions", {"prompt": f"def add_{n}(a, b):", **text}) for n in range(3)]
    said = {"temperature": 0, "max_output_tokens": 30, "return_token_ids": True, "instructions": "Be brief."}
    cases += [("/v1/responses", {"input": f"Name a town in {land}.", **said}) for land in ("Peru", "Chad")]
    tool = {"type": "function", **WEATHER["function"]}
    cases += [("/v1/responses", {"input": "Weather in Rome?", "tools": [tool], "tool_choice": "required", **said})]
    return cases


def _told(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What a client learned, ids of calls aside, which are random."""
    if answer.get("object") == "response":
        texts = [item.get("content", [{}])[0].get("text", item.get("arguments")) for item in answer["output"]]
        return [(answer["token_ids"], texts, answer["status"])]
    told: list[tuple[Any, ...]] = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        message = choice.get("message", {"content": choice.get("text")})
        calls = [call["function"] for call in message.get("tool_calls") or []]
        told.append((choice["token_ids"], message["content"], calls, choice["finish_reason"], choice.get("logprobs")))
    return told


def _told_by_stream(events: str) -> list[list[int]]:
    """Token ids by choice: what every stream carries, whatever its chunks are."""
    ids: dict[int, list[int]] = {}
    if events.startswith("event: response.created"):
        last = json.loads(events.split("data: ")[-1])
        assert last["type"] in ("response.completed", "response.incomplete"), events[-500:]
        return [last["response"]["token_ids"]]
    ended = False
    for line in events.splitlines():
        assert not line.startswith("event: error"), events[-500:]
        if line == "data: [DONE]":
            ended = True
        elif line.startswith("data: "):
            for choice in json.loads(line[6:])["choices"]:
                ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    assert ended, "a stream ended without [DONE]"
    return [ids[index] for index in sorted(ids)]


class Soak:
    """The clients, what they should hear, and what happened."""

    def __init__(self, server: Process, seed: int) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.cases = _requests()
        self.expected: list[list[tuple[Any, ...]]] = []
        self.happened: Counter[str] = Counter()

    async def learn(self) -> None:
        """Answers of each request alone, plain."""
        async with httpx.AsyncClient(base_url=self.server.url, timeout=300) as http:
            await self._patch(http, {"enabled": False})
            for path, body in self.cases:
                response = await http.post(path, json=body)
                assert response.status_code == 200, response.text
                self.expected.append(_told(response.json()))
            await self._patch(http, {"enabled": True})

    async def run(self, seconds: float) -> None:
        """All clients and the operator, until the time is up."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client(until))
            group.create_task(self._operator(until))

    async def _client(self, until: float) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=300) as http:
            while time.monotonic() < until:
                if self.dice.random() < NONSENSE:
                    await self._nonsense(http)
                else:
                    await self._ask(http, self.dice.randrange(len(self.cases)))

    async def _nonsense(self, http: httpx.AsyncClient) -> None:
        path, body = self.dice.choice(BAD)
        response = await http.post(path, content=body, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, (path, body[:80], response.status_code)
        assert response.json()["error"]["message"]
        self.happened["refused"] += 1

    async def _ask(self, http: httpx.AsyncClient, number: int) -> None:
        path, body = self.cases[number]
        streamed = self.dice.random() < 0.6
        leaves = self.dice.uniform(0.01, 3.0) if self.dice.random() < LEAVES else None
        try:
            async with asyncio.timeout(leaves):
                response = await http.post(path, json={**body, "stream": streamed})
        except TimeoutError:
            self.happened["left"] += 1
            return
        assert response.status_code == 200, response.text
        if streamed:
            assert _told_by_stream(response.text) == [told[0] for told in self.expected[number]], body
        else:
            assert _told(response.json()) == self.expected[number], body
        self.happened["streamed" if streamed else "whole"] += 1

    async def _operator(self, until: float) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=60) as http:
            while time.monotonic() < until:
                await self._patch(http, self.dice.choice(POLICIES))
                assert (await http.get("/health")).status_code == 200
                assert (await http.get("/metrics")).status_code == 200
                self.happened["patched"] += 1
                await asyncio.sleep(self.dice.uniform(0.1, 1.0))

    @staticmethod
    async def _patch(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
        response = await http.patch("/admin/speculation", json=change)
        assert response.status_code == 200, response.text


def test_everything_at_once(served: Any, eventually: Any) -> None:
    server = served(real_model(CODER), 48 * MIB, "--max-running", "12", "--response-store", "1MiB")
    soak = Soak(server, seed=int(os.environ.get("SOAK_SEED", "1")))
    asyncio.run(soak.learn())
    asyncio.run(soak.run(SECONDS / 4))  # touches what is allocated once
    assert eventually(server.idle, 120)
    resident = server.resident()
    asyncio.run(soak.run(SECONDS * 3 / 4))
    assert eventually(server.idle, 120)
    assert server.resident() < resident + 24 * MIB, dict(soak.happened)
    assert min(soak.happened[kind] for kind in ("whole", "streamed", "left", "refused", "patched")) > 0, soak.happened
    print(dict(soak.happened), f"{(server.resident() - resident) / MIB:.1f} MiB grown")
