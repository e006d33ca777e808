"""Names of algorithms, and who declines what."""

from __future__ import annotations

import pytest
from speculation_doubles import FakeTarget, Scripted

from surefoot.engine.speculation.contract import Verdict
from surefoot.engine.speculation.registry import Declined, Entry, Registry, Resources
from surefoot.kernels.errors import ConfigError


def registry(*entries: tuple[str, Entry]) -> Registry:
    return Registry(dict(entries))


def declining(reason: str, weight_free: bool = False) -> Entry:
    return Entry(lambda target, resources: Declined(reason), weight_free)


def serving(weight_free: bool = False) -> Entry:
    return Entry(lambda target, resources: Scripted(), weight_free)


def test_every_builtin_line_can_be_imported() -> None:
    for name, entry in Registry().entries.items():
        assert callable(entry.load()), name


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"'medusa'; known: auto, .*ngram"):
        Registry().members("medusa")


def test_an_error_inside_a_module_is_not_disguised() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        registry(("broken", Entry("no_such_module:create"))).create("broken", FakeTarget(), Resources())


def test_extending_gives_a_new_table() -> None:
    base = Registry()
    larger = base.extended("mine", serving())
    assert "mine" in larger.names and "mine" not in base.names
    for taken in ("auto", "ngram"):
        with pytest.raises(ConfigError, match="exists already"):
            base.extended(taken, serving())


def test_auto_stands_for_all_in_order() -> None:
    table = registry(("a", declining("no file")), ("b", serving()))
    assert table.members("auto") == ("a", "b") and table.members("b") == ("b",)
    assert Registry().members("auto")[-1] == "ngram", "what costs nothing comes last"


def test_a_refusal_outranks_everything_and_no_factory_runs() -> None:
    def factory(target: object, resources: object) -> Scripted:
        raise AssertionError("the draft file would have been opened")

    target = FakeTarget(verdict=Verdict(refusal="its verify cannot reproduce its decode", unprofitable="slow"))
    made = registry(("mine", Entry(factory))).create("mine", target, Resources())
    assert made == Declined("its verify cannot reproduce its decode")


def test_unprofitable_concerns_weight_free_algorithms_only() -> None:
    target = FakeTarget(verdict=Verdict(unprofitable="needs its own drafter"))
    table = registry(("free", serving(weight_free=True)), ("head", serving()))
    assert table.create("free", target, Resources()) == Declined("needs its own drafter")
    assert isinstance(table.create("head", target, Resources()), Scripted)
