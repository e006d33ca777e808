"""Pools are sized before anything is allocated, and every choice is explained."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.config import EngineConfig
from surefoot.engine.kv_cache import blocks_for, window_blocks
from surefoot.engine.memory import available_memory, plan_memory, total_memory
from surefoot.kernels.errors import ConfigError
from surefoot.kernels.program import KvGroup

FULL = KvGroup("full", 1, 1, 1, 1)
WINDOW = KvGroup("window", 5, 1, 1, 1, window=512)
KIB = 1024


@given(
    st.integers(1, 64 << 20),
    st.integers(1, 32),
    st.sampled_from([32, 100, 2048, 40_000]),
    st.sampled_from([16, 512]),
)
def test_sizes_keep_the_bound_and_hold_one_whole_context(
    kv_memory: int, max_running: int, trained: int, chunk: int
) -> None:
    config = EngineConfig(kv_memory=kv_memory, max_running=max_running, prefill_chunk=chunk)
    try:
        plan = plan_memory([FULL, WINDOW], [KIB, 5 * KIB], trained, config)
    except ConfigError as error:
        assert kv_memory < 12 * KIB and "kv_memory" in str(error)
        return
    full, window = plan.num_blocks
    assert plan.total_bytes == full * KIB + window * 5 * KIB <= kv_memory
    assert plan.context_length <= trained
    assert blocks_for(plan.context_length) <= full - 1
    needed = window_blocks(512) + blocks_for(max(chunk, 65)) + 1
    assert window - 1 >= min(needed, full - 1), "one sequence always fits"
    if plan.context_length < trained:
        assert any(reason.startswith("context_length") for reason in plan.reasons)


def test_an_explicit_context_that_does_not_fit_is_an_error_that_says_what_would() -> None:
    config = EngineConfig(kv_memory=100 * KIB, context_length=32_000)
    with pytest.raises(ConfigError, match=r"32000 tokens takes 1\.0 MiB .* 0\.1 MiB allowed"):
        plan_memory([FULL], [KIB], 64_000, config)


def test_an_explicit_memory_beyond_the_machine_is_an_error() -> None:
    beyond = total_memory() * 2
    with pytest.raises(ConfigError, match="kv_memory"):
        plan_memory([FULL], [1 << 30], 1 << 30, EngineConfig(kv_memory=beyond))
    assert plan_memory([FULL], [KIB], 2048, EngineConfig(kv_memory=beyond)).total_bytes < 1 << 21  # what is needed


def test_a_context_beyond_the_trained_one_is_said() -> None:
    plan = plan_memory([FULL], [KIB], 2048, EngineConfig(context_length=4096))
    assert plan.context_length == 4096
    assert any("beyond the 2048" in reason for reason in plan.reasons)


def test_window_groups_get_windows_and_not_contexts() -> None:
    config = EngineConfig(kv_memory=1 << 30, max_running=4)
    plan = plan_memory([FULL, WINDOW], [KIB, 5 * KIB], 32_768, config)
    full, window = plan.num_blocks
    assert full == 4 * 1024 + 1
    assert 4 * 16 < window < full // 2


def test_automatic_memory_is_explained_and_within_the_machine() -> None:
    plan = plan_memory([FULL], [64 * KIB], 1 << 20, EngineConfig())
    assert plan.reasons[0].startswith("kv_memory: ")
    assert 0 < plan.total_bytes <= available_memory()
    small = plan_memory([FULL], [KIB], 2048, EngineConfig())
    assert small.total_bytes == (4 * 64 + 1) * KIB


@pytest.mark.parametrize(
    "bad",
    [{"max_running": 0}, {"prefill_chunk": 0}, {"max_waiting": -1}, {"context_length": 1}, {"stall_seconds": 0.0}],
)
def test_impossible_settings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        EngineConfig(**bad)  # type: ignore[arg-type]
