"""The flags of embeddings, from the command line to what the server gives."""

from __future__ import annotations

import pytest

from surefoot.kernels.errors import ConfigError
from surefoot.server.settings import sizes


@pytest.mark.parametrize(
    ("given", "expected"), [(None, ()), (["128,256"], (128, 256)), (["128", "64"], (128, 64)), (["128, "], (128,))]
)
def test_sizes_are_repeated_or_listed(given: list[str] | None, expected: tuple[int, ...]) -> None:
    assert sizes("--embedding-dimensions", given) == expected


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "many", "1" * 20, "٣"])
def test_what_is_no_size_stops_the_start(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--embedding-dimensions"):
        sizes("--embedding-dimensions", ["128", wrong])
