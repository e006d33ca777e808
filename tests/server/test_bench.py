"""The load generator: its statistics, and its client against a scripted server."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.server.bench.client import BenchError, Target
from surefoot.server.bench.plot import write_bars
from surefoot.server.bench.scenarios import Prompts
from surefoot.server.bench.statistics import Spread, median_interval, paired_ratios


def test_ratios_are_taken_pair_by_pair() -> None:
    ratios = paired_ratios([10.0, 40.0, 90.0], [5.0, 10.0, 30.0])
    assert (ratios.median, ratios.low, ratios.high) == (3.0, 2.0, 4.0)
    with pytest.raises(ValueError):
        paired_ratios([1.0], [1.0, 2.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= Spread.of(values).median <= high


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = random.Random(3)
    intervals = [median_interval([rng.gauss(0, 1) for _ in range(20)]) for _ in range(2000)]
    covered = sum(low <= 0 <= high for low, high in intervals) / 2000
    assert 0.95 <= covered <= 0.975  # order statistics 6 and 15 of 20: 95.86 %


@given(st.integers(0, 1000), st.integers(1, 700))
def test_prompts_have_the_length_asked_and_depend_on_the_seed(seed: int, length: int) -> None:
    prompts = Prompts(list(range(500)))
    assert len(prompts.make(length, seed)) == length
    assert prompts.make(length, seed) == prompts.make(length, seed)
    assert prompts.make(64, seed)[:16] != prompts.make(64, seed + 1)[:16]


def test_the_plot_is_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    write_bars(path, {"a < b": {"ours": Spread.of([1.0, 2.0]), "theirs": Spread.of([0.0])}})
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


async def _with_server(answer: Answer, use: Callable[[Target], Awaitable[None]]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await answer(writer, await reader.readexactly(length))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        await use(Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))


def test_the_client_reads_a_chunked_stream_however_it_is_cut() -> None:
    events = [
        {"choices": [{"index": 0, "text": "ab", "token_ids": [1, 2]}]},
        {"choices": [{"index": 0, "text": "c", "token_ids": [3]}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
    ]
    stream = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        assert json.loads(body)["prompt"] == [9, 8]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(stream), 7):
            part = stream[i : i + 7]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        writer.write(b"0\r\n\r\n")

    async def use(target: Target) -> None:
        timing = await target.complete([9, 8], 3)
        assert (timing.text, timing.token_ids) == ("abc", [1, 2, 3])
        assert (timing.prompt_tokens, timing.completion_tokens, len(timing.chunk_times)) == (4, 3, 2)

    asyncio.run(_with_server(answer, use))


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "no"}}\n\n',
        b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n",
    ],
    ids=["status", "error event", "no token"],
)
def test_the_client_never_takes_a_failure_for_a_figure(reply: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(reply)

    async def use(target: Target) -> None:
        with pytest.raises(BenchError):
            await target.complete([1], 1)

    asyncio.run(_with_server(answer, use))
