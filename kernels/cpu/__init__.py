"""Native CPU kernels: matrix products, attention, the executor and its threads.

Whoever imports anything of this package has the native module of the same version, or none.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..errors import StartError
from .stamp import is_of

_REMEDY = "reinstall surefoot ('pip install .' in its source folder)"


def _check() -> None:
    spec = find_spec("._ops", __package__)
    if spec is None:
        return
    try:
        from . import _ops
    except ImportError as error:
        raise StartError(f"the native module cannot be loaded ({error}): {_REMEDY}") from None
    if not is_of(getattr(_ops, "built_from", {}), Path(__file__).parent):
        raise StartError(f"the native module {spec.origin} was built from other sources than this version's: {_REMEDY}")


_check()
