"""Which sources the native module was built from, so that Python of another version does not call into it: that ends in
wrong numbers or in a hang, and says nothing.

Also run by CMake, on its own, when the module is built. At load every source that lies beside Python is compared: all
in a checkout, and in an installation the stub file, which is what the two halves have agreed on.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

STUB = "_ops.pyi"


def digests(folder: Path) -> dict[str, str]:
    """Digests of the native sources in a folder, by name."""
    paths = [*folder.glob(STUB), *folder.rglob("*.cpp"), *folder.rglob("*.h")]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def is_of(built_from: Mapping[str, str], folder: Path) -> bool:
    """Whether a module that was built from these sources belongs to the Python files in a folder."""
    here = digests(folder)
    return STUB in here and here.items() <= built_from.items()


if __name__ == "__main__":
    found = digests(Path(__file__).parent)
    Path(sys.argv[1]).write_text("".join(f'{{"{name}", "{found[name]}"}},\n' for name in sorted(found)))
