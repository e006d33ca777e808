"""`bench spec`: its verdicts, and itself against a live server with a tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from surefoot.kernels.errors import ConfigError
from surefoot.server.bench.client import Timing
from surefoot.server.bench.command import whole_numbers
from surefoot.server.bench.comparison import Comparison, compare
from surefoot.server.bench.spec import Report, as_json, parting
from surefoot.server.bench.spec_cases import CASES
from surefoot.server.bench.spec_loads import Result, in_company, percentile, summed, system_prompt
from surefoot.server.bench.spec_plan import Plan
from surefoot.server.bench.spec_sides import salted
from surefoot.server.cli import main


def test_verdicts_need_an_interval_on_one_side_of_1() -> None:
    twice, same = [2.0 + i / 100 for i in range(20)], [1.0] * 20
    assert compare(twice, same, lower_is_better=False).verdict == "better"
    assert compare(twice, same, lower_is_better=True).verdict == "worse"
    assert compare([0.9, 1.1] * 10, same, lower_is_better=False).verdict == "inconclusive"
    assert compare(twice[:5], same[:5], lower_is_better=False).verdict == "too few pairs"
    assert compare([3.0], [6.0], lower_is_better=True) == Comparison(2.0, 2.0, 2.0, 1)
    with pytest.raises(ValueError):
        compare([1.0, 2.0], [1.0], lower_is_better=False)


def test_equal_sides_are_rarely_told_apart() -> None:
    pick = random.Random(2)
    verdicts = [
        compare(*[[pick.lognormvariate(0, 0.3) for _ in range(20)] for _ in "ab"], lower_is_better=False).verdict
        for _ in range(500)
    ]
    assert 440 <= verdicts.count("inconclusive") < 500


def test_percentiles() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7


def test_gaps_are_those_of_neighbours_while_they_have_company() -> None:
    first = Timing(0.0, chunk_times=[1.0, 2.0, 3.0, 4.5, 9.0], chunk_tokens=[1, 4, 1, 3, 1])
    newcomer = Timing(1.5, chunk_times=[2.5, 5.0], chunk_tokens=[1, 1])
    assert in_company([first, newcomer]) == [(1.0, 1), (1.5, 3)]
    assert in_company([first]) == []


def test_a_changed_stream_is_named() -> None:
    off, on = Result(streams=[(1, 2), (3, 4, 5)]), Result(streams=[(1, 2), (3, 9, 5)])
    report = Report(["off", "on"], "quiet", runs={"prose": {"off": [off], "on": [on]}})
    assert report.compared == 2
    assert report.different == ["prose, pair 0, stream 1: different from token 1 on"]
    assert parting((1, 2), (1, 2, 3)) == 2


def test_figures_of_a_side_that_lacks_them_are_not_compared() -> None:
    runs = {side: [Result({"decode tok/s": rate})] for side, rate in (("off", 10.0), ("on", 30.0))}
    report = Report(["off", "on", "other"], "quiet", runs={"json": {**runs, "other": [Result()]}})
    ratio = report.comparison("json", "decode tok/s", "off")
    assert ratio is not None and ratio.ratio == 3
    assert report.comparison("json", "decode tok/s", "other") is None
    assert list(json.loads(as_json(report))["loads"]["json"]["ratios"]) == ["decode tok/s, on against off"]


def test_other_servers_find_no_prompt_of_another_pair_in_their_cache() -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    one, same, other = salted(chat, "a"), salted([*chat, chat[1]], "a"), salted(chat, "b")
    assert one == same[:2] and one[1] == chat[1]
    assert one[0]["content"] != other[0]["content"] and one[0]["content"].endswith(" be brief")


def test_counters_add_up() -> None:
    assert summed([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 4, "b": 2}


def test_plans_fit_the_context() -> None:
    plan = Plan(None, 100, None, (1, 2), (0, 600))
    names = [load.name for load in plan.loads(2048)]
    assert names[-3:] == ["1 streams, 0 ms apart", "2 streams, 0 ms apart", "2 streams, 600 ms apart"]
    assert len(names) == 6 + 1 + 3
    cases = Plan(list(CASES), 100, None, (1,), (0,)).loads(2048)
    assert [load.name for load in cases] == list(CASES)
    assert len(system_prompt(300, 0).split()) in range(300, 480)
    assert system_prompt(300, 0) != system_prompt(300, 1)
    with pytest.raises(ConfigError, match="known are one-word"):
        Plan(["poems"], 100, None, (1,), (0,)).loads(None)


@pytest.mark.parametrize("text", ["", "1,x", "0", "-1"])
def test_lists_of_numbers_are_checked(text: str) -> None:
    with pytest.raises(ConfigError, match="--concurrency"):
        whole_numbers("--concurrency", text, 1)


def test_the_command_against_a_live_server(real: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "spec.json"
    with real.http() as http:
        policy = http.patch("/admin/speculation", json={"governor": "off", "draft_tokens": 3}).json()["policy"]
    shape = ["--pairs", "1", "--tokens", "6", "--system-words", "20", "--concurrency", "2", "--stagger-ms", "0"]
    loads = [part for name in ("json", "chat", "crowd", *CASES) for part in ("--load", name)]
    with pytest.raises(SystemExit) as end:
        main(["bench", "spec", real.url, *shape, *loads, "--against", real.url + "/", "--json", str(out)])
    assert end.value.code == 0
    measured = json.loads(out.read_text())
    assert list(measured["loads"]) == ["json", "agent chat", "2 streams, 0 ms apart", *CASES]
    assert measured["different"] == []
    (on,) = measured["loads"]["json"]["runs"]["on"]
    assert on["counters"]["tokens"] > 1 and on["figures"]["first token ms"] > 0
    assert on["figures"]["prompt tok/prefill step"] > 1
    assert len(measured["loads"]["agent chat"]["runs"]["off"][0]["streams"]) == 4
    printed = capsys.readouterr().out
    assert "streams that speculation changed: 0 of 19" in printed and "machine:" in printed
    with real.http() as http:
        after = http.get("/admin/speculation").json()["policy"]
    assert {**after, "generation": 0} == {**policy, "generation": 0}  # it was put back


def test_a_server_that_cannot_be_used_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "spec", "http://127.0.0.1:9"])
    assert end.value.code == 2
    assert "surefoot: bench spec:" in capsys.readouterr().err
