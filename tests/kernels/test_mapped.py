"""Pages of a mapped file go back when their content is packed; no other memory does."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from surefoot.kernels.cpu.mapped import release_mapped

PAGES = 64
CONTENT = np.arange(PAGES * mmap.PAGESIZE, dtype=np.uint32).astype(np.uint8)


def resident_pages(path: Path) -> int:
    """Pages of the file that this process holds."""
    smaps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", smaps)
    assert found is not None
    return int(found[1]) * 1024 // mmap.PAGESIZE


@pytest.fixture
def view(tmp_path: Path) -> np.ndarray:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT.tobytes())
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def test_whole_pages_of_a_view_go_back_and_can_be_read_again(view: np.ndarray, tmp_path: Path) -> None:
    assert view.sum() > 0 and resident_pages(tmp_path / "weights") == PAGES
    middle = view[10 * mmap.PAGESIZE - 100 : 30 * mmap.PAGESIZE + 100]
    release_mapped(middle[200:])  # pages 11 to 29 wholly, of page 10 and page 30 a part
    assert resident_pages(tmp_path / "weights") <= PAGES - 19
    np.testing.assert_array_equal(view, CONTENT)


def test_a_view_within_a_page_gives_nothing_back(view: np.ndarray, tmp_path: Path) -> None:
    assert view.sum() > 0
    release_mapped(view[100:200])
    release_mapped(view[mmap.PAGESIZE - 1 : 2 * mmap.PAGESIZE - 1])
    release_mapped(view[:0])
    assert resident_pages(tmp_path / "weights") == PAGES


def test_other_memory_keeps_its_content() -> None:
    owned = CONTENT.copy()
    release_mapped(owned)
    np.testing.assert_array_equal(owned, CONTENT)
    anonymous = mmap.mmap(-1, CONTENT.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    anonymous.write(CONTENT.tobytes())
    release_mapped(np.frombuffer(anonymous, np.uint8))
    np.testing.assert_array_equal(np.frombuffer(anonymous, np.uint8), CONTENT)
