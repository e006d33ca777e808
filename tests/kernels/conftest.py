"""What the tests of kernels share."""

from __future__ import annotations

import pytest
from sampling_cases import FACES, Face, face


@pytest.fixture(params=FACES)
def sampling(request: pytest.FixtureRequest) -> Face:
    return face(request.param)
