"""`bench overhead`: its reader against a scripted server, its reading of metrics, the whole command on a tiny file."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from surefoot.engine.bench.direct import DecodeTurns
from surefoot.server.bench import overhead
from surefoot.server.bench.client import BenchError, samples
from surefoot.server.bench.quiet_client import stream_all
from surefoot.server.bench.server_process import served
from surefoot.server.cli import main

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"


def test_metrics_give_the_turns_of_decodes_alone() -> None:
    text = "\n".join(
        [
            "# TYPE surefoot_engine_turn_seconds_total counter",
            'surefoot_engine_turn_seconds_total{kind="decode",part="native"} 3.5',
            'surefoot_engine_turn_seconds_total{kind="decode",part="gil_wait"} 0.25',
            'surefoot_engine_turn_seconds_total{kind="decode",part="python"} 0.75',
            'surefoot_engine_turn_seconds_total{kind="prefill",part="python"} 9',
            "# TYPE surefoot_step_seconds histogram",
            'surefoot_step_seconds_count{kind="prefill"} 7',
            'surefoot_step_seconds_count{kind="decode"} 1000',
        ]
    )
    turns = overhead.served_turns(samples(text + "\n"))
    assert turns == DecodeTurns(1000, 3.5, 0.25, 0.75)
    assert overhead.python_us(turns) == pytest.approx(1000)
    assert turns.since(DecodeTurns(999, 3.0, 0.25, 0.5)) == DecodeTurns(1, 0.5, 0.0, 0.25)


async def _ask(pieces: list[bytes], streams: int) -> tuple[int, int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        assert body["stream"] and body["ignore_eos"] and body["max_tokens"] == 5
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await stream_all(f"http://127.0.0.1:{port}", [[1, 2]] * streams, 5)
    assert done.seconds > 0
    return done.num_tokens, done.num_reads


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\n'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_the_reader_counts_by_usage_wherever_the_bytes_are_cut() -> None:
    whole = HEAD + _chunk(b'data: {"choices": []}\n\n' + USAGE[:20]) + _chunk(USAGE[20:] + b"data: [DONE]\n\n")
    whole += b"0\r\n\r\n"
    tokens, reads = asyncio.run(_ask([whole], 3))
    assert tokens == 15 and reads >= 3
    assert asyncio.run(_ask([whole[:50], whole[50:90], whole[90:]], 1))[0] == 5


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + _chunk(USAGE),
        HEAD + _chunk(USAGE + b"data: [DONE]\n\n")[:-9],
        b"",
    ],
)
def test_the_reader_refuses_half_an_answer(answer: bytes) -> None:
    with pytest.raises(BenchError, match="not a whole answer"):
        asyncio.run(_ask([answer], 1))


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "no.gguf"
    with pytest.raises(BenchError, match=r"did not start: .*no\.gguf"), served(missing, []):
        raise AssertionError("it started")


def test_both_sides_of_every_load_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    arguments = ["bench", "overhead", str(MODEL), "--streams", "1,3", "--tokens", "6", "--pairs", "2"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--threads", "1", "--json", str(out)])
    assert ended.value.code == 0
    assert "HTTP takes" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert list(report["runs"]) == ["1", "3"]
    for sides in report["runs"].values():
        assert [len(runs) for runs in sides.values()] == [2, 2]
        for side, runs in sides.items():
            for run in runs:
                assert run["tokens_per_second"] > 0
                assert run["turns"]["steps"] >= 5  # the first token comes from the prefill
                assert run["turns"]["native"] > 0 and run["turns"]["python"] > 0 and run["turns"]["gil_wait"] >= 0
                assert (run["client_us"] is not None) == (side == "served")
                if sys.platform == "linux":
                    assert (run["loop_us"] is not None) == (side == "served")
