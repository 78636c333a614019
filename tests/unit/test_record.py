"""Records behave as frozen dataclasses do; only their import costs nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slicer import model, record
from slicer.model import Busy
from slicer.placement.decision import Infeasible
from slicer.placement.settings import Policy

pytestmark = pytest.mark.both_pythons


@record.record
class Point:
    x: int
    y: int = 7


@dataclasses.dataclass(frozen=True)
class FrozenPoint:
    x: int
    y: int = 7


@record.record
class Marked(Point):
    z: str = "*"


@dataclasses.dataclass(frozen=True)
class FrozenMarked(FrozenPoint):
    z: str = "*"


@record.record
class Other:
    x: int
    y: int = 7


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 2), {}),
    ((), {"x": 1}),
    ((), {"y": 2, "x": 1}),
    ((1,), {"y": 2}),
    ((), {}),
    ((), {"y": 1}),
    ((1, 2, 3), {}),
    ((1,), {"x": 1}),
    ((1, 2), {"y": 2}),
    ((1,), {"z": 1}),
]


@pytest.mark.parametrize(("args", "named"), CALLS)
def test_accepts_the_same_arguments_as_a_dataclass(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        expected = dataclasses.asdict(FrozenPoint(*args, **named))
    except TypeError:
        with pytest.raises(TypeError, match="Point"):
            Point(*args, **named)
    else:
        assert record.as_dict(Point(*args, **named)) == expected


@pytest.mark.parametrize("left", [(1,), (1, 7), (1, 8), (2, 7)])
@pytest.mark.parametrize("right", [(1,), (1, 7), (1, 8), (2, 7)])
def test_equality_and_hash_are_those_of_a_dataclass(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert (Point(*left) == Point(*right)) == (FrozenPoint(*left) == FrozenPoint(*right))
    assert (Point(*left) != Point(*right)) == (FrozenPoint(*left) != FrozenPoint(*right))
    assert len({Point(*left), Point(*right)}) == len({FrozenPoint(*left), FrozenPoint(*right)})


def test_is_equal_to_no_other_type_with_the_same_fields() -> None:
    assert Point(1) != Other(1)
    assert Point(1) != FrozenPoint(1)
    assert Point(1) != (1, 7)


def test_repr_shows_the_fields_defaults_included() -> None:
    assert repr(Point(1)) == repr(FrozenPoint(1)).replace("Frozen", "") == "Point(x=1, y=7)"


@pytest.mark.parametrize("name", ["x", "y", "new"])
@pytest.mark.parametrize("kind", [Point, FrozenPoint])
def test_is_immutable(kind: type[Any], name: str) -> None:
    value = kind(1)
    with pytest.raises(AttributeError):
        setattr(value, name, 2)
    with pytest.raises(AttributeError):
        delattr(value, name)
    assert value == kind(1)


def test_a_default_is_not_shared_state() -> None:
    assert Point(1, 2) != Point(1)
    assert Point(1).y == 7


def test_replace_copies() -> None:
    before = Point(1)
    assert record.replace(before, x=3) == Point(3)
    assert record.replace(before) == before == Point(1)
    assert dataclasses.replace(FrozenPoint(1), x=3) == FrozenPoint(3)


def test_replace_takes_a_field_of_any_name() -> None:
    before = model.Property("MemoryMax", "MemoryMax", "t", 1, "1")
    assert record.replace(before, value=2).value == 2


@pytest.mark.parametrize("change", [record.replace, dataclasses.replace])
def test_replace_refuses_unknown_fields(change: Any) -> None:
    value = Point(1) if change is record.replace else FrozenPoint(1)
    with pytest.raises(TypeError):
        change(value, z=1)


def test_fields_keep_their_order() -> None:
    assert list(record.as_dict(Point(y=1, x=2))) == ["x", "y"]
    assert list(record.as_dict(model.Usage())) == list(model.Usage.__annotations__)


@pytest.mark.parametrize("args", [(1,), (1, 2), (1, 2, "+")])
def test_extends_another_as_a_dataclass_does(args: tuple[Any, ...]) -> None:
    value = Marked(*args)
    assert record.as_dict(value) == dataclasses.asdict(FrozenMarked(*args))
    assert repr(value) == repr(FrozenMarked(*args)).replace("Frozen", "")
    assert list(Marked.__annotations__) == ["x", "y", "z"]
    assert list(Point.__annotations__) == ["x", "y"]
    assert value != Point(*args[:2])


def test_fields_for_another_kind_are_those_that_both_have() -> None:
    assert record.fields_for(Point, Marked(1, 2, "+")) == {"x": 1, "y": 2}
    assert record.fields_for(Marked, Point(1)) == {"x": 1, "y": 7}


@pytest.mark.parametrize(
    "value",
    [Policy(), Busy("gpu", (), 0, (), ""), Infeasible("cpu", 2, 1), model.Usage()],
)
def test_slicers_own_words_are_records(value: Any) -> None:
    assert record.replace(value) == value
    assert hash(record.replace(value)) == hash(value)
    with pytest.raises(AttributeError):
        value.anything = 1
