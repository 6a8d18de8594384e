"""User values as JSON bytes, and back to their declared types.

Owns what may be journaled: anything msgspec encodes, within the size limit, without NaN, infinities
or lone surrogates. Refuses everything else at the edge with a `PayloadError` that names the place
inside the value. Types are restored from annotations in code, never from a name in the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from pyrula.workflows.stores.errors import PayloadError

Decode = Callable[[bytes], Any]
_REFUSALS = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError)


def _plain_form(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__qualname__} is not JSON-able")


def _restore(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"{kind!r} can't be restored from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain_form)
_ordered_encoder = msgspec.json.Encoder(enc_hook=_plain_form, order="deterministic")
decode_plain: Decode = msgspec.json.Decoder().decode
_decoders: WeakKeyDictionary[Callable[..., Any], Decode] = WeakKeyDictionary()


def encode(value: Any, what: str, limit: int) -> bytes:
    """JSON bytes of `value`; `what` names it in errors, `limit` is in bytes.

    Raises `PayloadError` `payload_not_serialisable` or `payload_too_large`.

    >>> encode({"at": (1, 2)}, "the result", 1024)
    b'{"at":[1,2]}'
    """
    return _checked(value, what, limit, _encoder.encode)


def encode_ordered(value: Any, what: str, limit: int) -> bytes:
    """As `encode`, with sets and keys sorted, so that equal values give equal bytes everywhere."""
    return _checked(value, what, limit, _encode_ordered)


def decoder_for(fn: Callable[..., Any]) -> Decode:
    """How to restore results of `fn`: by its return annotation, or as plain JSON.

    A callable class restores to itself. Decoders are cached for as long as their function lives.
    """
    fn = function_of(fn)
    if isinstance(fn, type):
        return decoder_of_type(fn)
    if not getattr(fn, "__annotations__", None):
        return decode_plain
    decode = _decoders.get(fn)
    if decode is None:
        decode = _decoders[fn] = decoder_of_type(hints_of(fn).get("return", Any))
    return decode


def decoder_of_type(kind: Any) -> Decode:
    """A decoder to `kind`; plain JSON where `kind` is no type that JSON can be restored to."""
    if get_origin(kind) in {Awaitable, Coroutine}:
        kind = get_args(kind)[-1]
    if kind is Any:
        return decode_plain
    try:
        return msgspec.json.Decoder(kind, dec_hook=_restore).decode
    except TypeError:
        return decode_plain


def restore(decode: Decode, raw: bytes, what: str) -> Any:
    """The value of `raw`. Raises `PayloadError` `result_type_mismatch`."""
    try:
        return decode(raw)
    except (msgspec.MsgspecError, NotImplementedError, ValueError) as error:
        raise PayloadError(
            f"expected {what} to match its declared type, found a value that doesn't ({error})",
            code="result_type_mismatch",
        ) from error


def function_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function (or class) behind a partial, a bound method or a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    if isinstance(fn, type) or hasattr(fn, "__code__"):
        return fn
    call = type(fn).__call__
    return call if hasattr(call, "__code__") else fn


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `fn` that can be resolved.

    Each is resolved by itself: one name imported only for type checkers costs no other its type.
    """
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception:  # noqa: BLE001  an annotation is any expression of the user's
        return {name: hint for name in fn.__annotations__ for hint in _resolved(fn, name)}


def _resolved(fn: Callable[..., Any], name: str) -> list[Any]:
    alone = SimpleNamespace(
        __annotations__={name: fn.__annotations__[name]},
        __globals__=getattr(fn, "__globals__", {}),
    )
    try:
        return [get_type_hints(alone, include_extras=True)[name]]
    except Exception:  # noqa: BLE001  an annotation is any expression of the user's
        return []


def _checked(value: Any, what: str, limit: int, encoding: Callable[[Any], bytes]) -> bytes:
    try:
        raw = encoding(value)
    except _REFUSALS as error:
        place = _find(value, _refused)
        raise PayloadError(
            f"expected {what} to be JSON-able, found {_shown(place)} ({error}); "
            "use plain data, a dataclass or a msgspec.Struct"
        ) from error
    place = None if value is None else _written_as_null(value, raw)
    if place is not None:
        raise PayloadError(
            f"expected {what} to hold finite numbers, found {_shown(place)}; JSON has no NaN"
        )
    if len(raw) > limit:
        raise PayloadError(
            f"expected {what} to take at most {limit} bytes as JSON, found {len(raw)}; "
            "keep big data elsewhere and journal a reference to it",
            code="payload_too_large",
            detail={"size": len(raw), "limit": limit},
        )
    return raw


def _encode_ordered(value: Any) -> bytes:
    try:
        return _ordered_encoder.encode(value)
    except TypeError:
        # Ordering wants keys that are strings; msgspec itself writes numbers as such.
        return _ordered_encoder.encode(_builtins(value))


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_form, order="deterministic")


_Place = tuple[str, Any]


def _written_as_null(value: Any, raw: bytes) -> _Place | None:
    """Where `value` holds a NaN or an infinity: msgspec writes them as null."""
    if b"null" not in raw or _builtins(value) == decode_plain(raw):
        return None
    return _find(value, _not_finite)


def _find(value: Any, bad: Callable[[Any], bool], path: str = "$", depth: int = 0) -> _Place | None:
    """The innermost part of `value` that is `bad`, with its path."""
    if depth > 60:
        return path, value
    for where, part in _parts(value):
        found = _find(part, bad, path + where, depth + 1)
        if found is not None:
            return found
    return (path, value) if bad(value) else None


def _parts(value: Any) -> Iterator[_Place]:
    if isinstance(value, Mapping):
        mapping = dict(cast("Iterable[tuple[Any, Any]]", value.items()))
        yield from ((f"[{key!r}]", part) for key, part in mapping.items())
        yield from ((f"[key {key!r}]", key) for key in mapping)
    elif isinstance(value, list | tuple | set | frozenset):
        members = cast("Iterable[Any]", value)
        yield from ((f"[{index}]", part) for index, part in enumerate(members))
    else:
        yield from ((f".{name}", getattr(value, name)) for name in _fields(value))


def _fields(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return getattr(type(cast("object", value)), "model_fields", ())


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _refused(value: Any) -> bool:
    try:
        _encoder.encode(value)
    except _REFUSALS:
        return True
    return False


def _shown(place: _Place | None) -> str:
    if place is None:
        return "a value that is not"
    path, value = place
    return f"{type(value).__qualname__} at {path}"
