"""The bounded cache: least recently used values go first, by number and by size."""

from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.grammar.cache import BoundedCache


def test_the_least_recently_used_goes_first() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2, 100)
    cache.put("a", 1, 10)
    cache.put("b", 2, 10)
    assert cache.get("a") == 1
    cache.put("c", 3, 10)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_size_counts_and_a_large_value_stays_alone() -> None:
    cache: BoundedCache[str, int] = BoundedCache(9, 100)
    cache.put("a", 1, 60)
    cache.put("b", 2, 60)
    assert (cache.get("a"), cache.get("b"), cache.num_bytes) == (None, 2, 60)
    cache.put("c", 3, 500)
    assert (len(cache), cache.get("c"), cache.num_bytes) == (1, 3, 500)
    cache.put("c", 4, 5)
    cache.discard("c")
    cache.discard("c")
    assert (len(cache), cache.num_bytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40))))
def test_bounds_hold(puts: list[tuple[int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(4, 100)
    sizes: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, size, size)
        sizes[key] = size
        kept = {known: value for known in sizes if (value := cache.get(known)) is not None}
        assert kept[key] == size
        assert len(cache) == len(kept) <= 4
        assert cache.num_bytes == sum(kept.values()) <= 100
