"""Governors: rules that decide, step by step, whether to draft and how much of a draft to verify.

contract.py    what the loop asks a governor and tells it
cost.py        the default: expected tokens per second, from measured prices and measured acceptance
probe.py       measure both ways in turns, park while speculation loses
off.py         always the exact window
pricing.py     what steps cost here and now (used by cost)
acceptance.py  how likely drafted tokens are to be accepted (used by cost)
paid.py        drafters that take device time: whether to run them at all (used by cost)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....kernels.errors import ConfigError
from .contract import CostCurve, Governor
from .cost import CostGovernor
from .off import OffGovernor
from .probe import ProbeGovernor

GOVERNORS: Mapping[str, Callable[[CostCurve], Governor]] = {
    "cost": CostGovernor,
    "probe": lambda curve: ProbeGovernor(),
    "off": lambda curve: OffGovernor(),
}


def create_governor(name: str, curve: CostCurve) -> Governor:
    """Raises ConfigError, listing the known names, when `name` is not one of them."""
    if name not in GOVERNORS:
        raise ConfigError(f"unknown governor {name!r}; known: {', '.join(GOVERNORS)}")
    return GOVERNORS[name](curve)
