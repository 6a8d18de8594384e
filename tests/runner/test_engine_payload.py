"""Values: what may be journaled, and that each type comes back as what it was declared."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import gc
import math
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from pyrula.workflows.engine.context import Context
from pyrula.workflows.engine.payload import (
    decoder_for,
    decoder_of_type,
    encode,
    encode_ordered,
    restore,
)
from pyrula.workflows.stores.errors import PayloadError
from tests.support.attempts import Run

if TYPE_CHECKING:
    from somewhere_only_checkers_look import Elsewhere  # type: ignore[import-not-found]

LIMIT = 1 << 20


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Line:
    ends: tuple[Point, Point]
    label: str | None = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Pair(NamedTuple):
    a: int
    b: str


class Movie(TypedDict):
    title: str
    year: int


NOW = dt.datetime(2026, 11, 30, 12, 30, 15, 123456, tzinfo=dt.UTC)
RESTORED: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -7),
    (int, 2**70),
    (float, 1e308),
    (float, 3.0),
    (str, "a\u0000b \U0001f600"),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"ab")),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (dict[str, int], {"a": 1}),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=5): 1}),
    (int | None, None),
    (int | str, "5"),
    (Literal["a", "b"], "b"),
    (dt.datetime, NOW),
    (dt.datetime, NOW.replace(tzinfo=None)),
    (dt.date, NOW.date()),
    (dt.time, NOW.time()),
    (dt.timedelta, dt.timedelta(days=1, microseconds=5)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=2**100)),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Word, Word.YES),
    (Access, Access.READ | Access.WRITE),
    (Point, Point(1, 2.5)),
    (Line, Line((Point(1), Point(2)), "l")),
    (list[Point], [Point(1), Point(2)]),
    (Cat | Dog, Dog("rex")),
    (list[Cat | Dog], [Cat(9), Dog("rex")]),
    (Point | None, Point(3)),
    (dict[Word, Point], {Word.YES: Point(1)}),
    (Pair, Pair(1, "b")),
    (Movie, {"title": "M", "year": 1931}),
    (Sequence[int], [1, 2]),
    (Mapping[str, int], {"a": 1}),
    (Awaitable[Point], Point(1)),
    (Any, {"a": [1, None]}),
]


@pytest.mark.parametrize(("kind", "value"), RESTORED, ids=range(len(RESTORED)))
def test_a_declared_type_is_restored(kind: Any, value: Any) -> None:
    restored = restore(decoder_of_type(kind), encode(value, "it", LIMIT), "it")
    assert restored == value
    assert type(restored) is type(value)


def test_a_pydantic_model_is_restored() -> None:
    model: Any = pydantic.create_model("Model", at=(dt.datetime, ...))
    raw = encode(model(at=NOW), "it", LIMIT)
    assert restore(decoder_of_type(model), raw, "it") == model(at=NOW)


async def test_a_result_is_live_what_it_will_be_on_replay() -> None:
    seen: list[Any] = []

    def undeclared() -> Any:
        return {1: (1, 2), "when": NOW, "kind": Colour.RED}

    def declared() -> Line:
        return Line((Point(1), Point(2)))

    async def body(ctx: Context) -> None:
        first = await ctx.step("undeclared", undeclared)
        first["1"].append(3)  # whatever the body does to it is not in the journal
        seen.append(first)
        seen.append(await ctx.step("declared", declared))

    run = Run(body)
    await run.attempt()
    await run.again(upto=-1).attempt()
    assert seen[:2] == seen[2:]
    assert seen[0] == {"1": [1, 2, 3], "when": "2026-11-30T12:30:15.123456Z", "kind": "red"}
    assert isinstance(seen[1], Line)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "$"),
        ([1, {"a": math.inf}], "$[1]['a']"),
        ({"a": None, "b": [-math.inf]}, "$['b'][0]"),
        (Point(1, math.nan), "$.y"),
        (Cat(lives=math.nan), "$.lives"),  # type: ignore[arg-type]
        ({"a": "\ud800"}, "$['a']"),
        ({"\ud800": 1}, "$[key '\\ud800']"),
        ({"a": [object()]}, "$['a'][0]"),
        ({"a": {(1, 2): 3}}, "$['a']"),
        ([1j], "$[0]"),
        ((print,), "$[0]"),
        (Line((Point(1), "x" + "\udfff")), "$.ends[1]"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("encoding", [encode, encode_ordered])
def test_what_json_cannot_hold_is_refused_with_its_place(
    encoding: Callable[[Any, str, int], bytes], value: Any, place: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        encoding(value, "the result of step 'x'", LIMIT)
    assert caught.value.code == "payload_not_serialisable"
    assert f" at {place}" in caught.value.message
    assert "the result of step 'x'" in caught.value.message


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(PayloadError):
        encode(ring, "it", LIMIT)


def test_a_value_over_the_limit_is_refused_with_its_size() -> None:
    assert encode("x" * 98, "it", 100)
    with pytest.raises(PayloadError) as caught:
        encode("x" * 99, "it", 100)
    assert caught.value.code == "payload_too_large"
    assert caught.value.detail == {"size": 101, "limit": 100}


def test_none_and_nulls_are_no_nan() -> None:
    assert encode(None, "it", LIMIT) == b"null"
    rows = [{"a": None, "text": "null", "t": (None, 1.5), "s": {1}, 3: Colour.RED}]
    assert b"null" in encode(rows, "it", LIMIT)


def test_a_subclass_of_str_is_text() -> None:
    class Markup(str):
        __slots__ = ()

    assert encode({"a": Markup("<b>")}, "it", LIMIT) == b'{"a":"<b>"}'


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (int, b'"7"'),
        (Point, b'{"y":1}'),
        (Colour, b'"blue"'),
        (Cat | Dog, b'{"type":"cow"}'),
        (dt.datetime, b'"yesterday"'),
        (tuple[int, str], b"[1]"),
        (Awaitable[int], b'"x"'),
    ],
)
def test_a_value_of_another_type_is_a_mismatch(kind: Any, raw: bytes) -> None:
    with pytest.raises(PayloadError) as caught:
        restore(decoder_of_type(kind), raw, "it")
    assert caught.value.code == "result_type_mismatch"


# Declarations


def declared(text: str) -> Point:
    return Point(len(text))


async def declared_async() -> Point:
    return Point(1)


def partly_unknown(where: Elsewhere) -> Point:  # pyright: ignore[reportUnknownParameterType]
    return Point(1)


class Maker:
    def __call__(self) -> Point:
        return Point(1)

    def make(self) -> Point:
        return Point(1)

    @classmethod
    def of_class(cls) -> Point:
        return Point(1)

    @staticmethod
    def static() -> Point:
        return Point(1)


@functools.wraps(declared)
def wrapped(*args: Any) -> Any:
    return declared(*args)


DECLARED: list[Any] = [
    *(declared, declared_async, partly_unknown, wrapped, Point),
    *(functools.partial(declared, "a"), functools.partial(functools.partial(declared), "a")),
    *(Maker(), Maker().make, Maker.of_class, Maker.static, functools.partial(Maker().make)),
]


@pytest.mark.parametrize("fn", DECLARED)
def test_the_declared_type_is_found_behind_any_callable(fn: Callable[..., Any]) -> None:
    assert decoder_for(fn)(b'{"x":4}') == Point(4)


@pytest.mark.parametrize("fn", [lambda: 1, len, functools.partial(print), object(), str.upper])
def test_a_callable_that_declares_nothing_gives_plain_json(fn: Any) -> None:
    assert decoder_for(fn)(b'{"x":4}') == {"x": 4}


def test_decoders_live_as_long_as_their_functions() -> None:
    def make() -> Callable[[], Point]:
        def inner() -> Point:
            return Point(1)

        return inner

    inner = make()
    assert decoder_for(inner) is decoder_for(inner)
    gone = weakref.ref(inner)
    del inner
    gc.collect()
    assert gone() is None
