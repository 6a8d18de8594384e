"""User values as JSON bytes, and back to their declared types.

Owns what may be journaled: anything msgspec encodes, within the size limit, without NaN, infinities
or lone surrogates. Refuses everything else at the edge with a `PayloadError` that names the place
inside the value. Types are restored from annotations in code, never from a name in the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from pyrula.workflows.stores.errors import PayloadError

Decode = Callable[[bytes], Any]


def _plain_form(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__qualname__} is not JSON-able")


def _restore(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"{kind!r} can't be restored from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain_form)
decode_plain: Decode = msgspec.json.Decoder().decode
_decoders: WeakKeyDictionary[Callable[..., Any], Decode] = WeakKeyDictionary()


def encode(value: Any, what: str, limit: int) -> bytes:
    """JSON bytes of `value`; `what` names it in errors, `limit` is in bytes.

    Raises `PayloadError` `payload_not_serialisable` or `payload_too_large`.
    """
    try:
        raw = _encoder.encode(value)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        place = _find(value, _refused)
        raise PayloadError(
            f"expected {what} to be JSON-able, found {_shown(place)} ({error}); "
            "return plain data, a dataclass or a msgspec.Struct"
        ) from error
    # msgspec writes NaN and infinities as null: look for them only where a null was written.
    if b"null" in raw and (place := _find(value, _not_finite)) is not None:
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


def decoder_for(fn: Callable[..., Any]) -> Decode:
    """How to restore results of `fn`: by its return annotation, or as plain JSON."""
    fn = getattr(fn, "__func__", fn)
    try:
        return _decoders[fn]
    except (KeyError, TypeError):
        pass
    decode = decoder_of_type(_return_type(fn))
    if getattr(fn, "__name__", "<lambda>") != "<lambda>":
        try:
            _decoders[fn] = decode
        except TypeError:
            return decode
    return decode


def decoder_of_type(kind: Any) -> Decode:
    """A decoder to `kind`; plain JSON where `kind` is no type that JSON can be restored to."""
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


def convert(value: Any, kind: Any) -> Any:
    """Plain JSON `value` as `kind`. Raises `msgspec.ValidationError`."""
    if kind is Any:
        return value
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_restore)
    except (TypeError, NotImplementedError):
        return value


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `fn`, or nothing where they can't be resolved."""
    try:
        return get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _return_type(fn: Callable[..., Any]) -> Any:
    if not getattr(fn, "__annotations__", None):
        return Any
    return hints_of(fn).get("return", Any)


_Place = tuple[str, Any]


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
        yield from ((f"[{key!r}]", part) for key, part in value.items())
        yield from ((f"[key {key!r}]", key) for key in value)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value))


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _refused(value: Any) -> bool:
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError):
        return True
    return False


def _shown(place: _Place | None) -> str:
    if place is None:
        return "a value that is not"
    path, value = place
    return f"{type(value).__qualname__} at {path}"
