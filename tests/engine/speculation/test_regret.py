"""The governor bench's table: consistent with the replays it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.engine.speculation.ngram_index import NgramIndex
from surefoot.engine.speculation.regret import ALL, load_traces, regret_table
from surefoot.engine.speculation.replay import Prices

TRACES = Path(__file__).parents[2] / "data" / "traces" / "smollm2-135m-instruct.json"


def test_the_table_adds_up_and_its_bounds_hold() -> None:
    traces = load_traces(TRACES)[:20]
    rows = regret_table(traces, Prices(lambda rows: 1 + 0.1 * (rows - 1)), NgramIndex)
    *kinds, whole = rows
    assert whole.kind == ALL and whole.requests == 20
    for name in ("cost", "probe"):
        assert whole.governors[name] == pytest.approx(sum(row.governors[name] for row in kinds))
    assert whole.plain == sum(row.plain for row in kinds) == sum(len(t.output) - 1 for t in traces)
    for row in rows:
        assert row.clairvoyant <= row.tuned <= row.fixed <= row.plain
        assert row.regret("cost", "clairvoyant") >= 0
        assert row.worst_request["cost"] >= row.regret("cost", "plain") + 1 - 1e-9
    assert whole.regret("cost", "probe") < 0
    assert whole.as_dict()["best_fixed"] == whole.fixed
