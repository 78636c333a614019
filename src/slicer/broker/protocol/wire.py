"""Varlink's frames: one JSON object, then NUL. Only here do untrusted bytes become records.

The decoder trusts nothing. A frame is small, its JSON is shallow, its keys are unique, its numbers are
finite, no text has a character on which a terminal would act; and a call has exactly the fields of its
record. ``json`` is not imported, which would cost ``slicer run`` 2 ms: its scanner in C is used directly.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner

from slicer.broker.protocol import messages
from slicer.broker.protocol.fields import BadField, read_record, texts_cut
from slicer.model import Busy
from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

MOST_REPLY_BYTES = 16 << 20  # the same limit as systemd's own varlink; only the broker writes them
MOST_DEPTH = 8
_MOST_DIGITS = 19
_SERVICE = "org.varlink.service"


@record
class GetInfo:
    """Varlink's own: which service is this?"""


@record
class GetInterfaceDescription:
    """Varlink's own: which methods does an interface have?"""

    interface: str


@record
class Info:
    """The answer to :class:`GetInfo`."""

    vendor: str
    product: str
    version: str
    url: str
    interfaces: tuple[str, ...]


@record
class Description:
    """The answer to :class:`GetInterfaceDescription`."""

    description: str


# The replies to each call. If there are several, exactly one comes, as a field of its name in lower case.
REPLIES: dict[type, tuple[type, ...]] = {
    messages.Acquire: (messages.Waiting, messages.Granted),
    messages.Start: (messages.StartedScope,),
    messages.Detach: (messages.Done,),
    messages.Release: (messages.Done,),
    messages.Finished: (messages.Done,),
    messages.Sampled: (messages.Done,),
    messages.Preview: (messages.Previewed,),
    messages.Status: (messages.Standing,),
    messages.Look: (messages.Seen,),
    messages.Usage: (messages.Used,),
    messages.Recent: (messages.PastLeases,),
    messages.Stop: (messages.Done,),
    messages.Freeze: (messages.Done,),
    messages.Thaw: (messages.Done,),
    messages.Set: (messages.Done,),
    messages.Reserve: (messages.Reserved,),
    messages.Unreserve: (messages.Done,),
    messages.SetService: (messages.Done,),
}
_SERVICE_REPLIES: dict[type, tuple[type, ...]] = {GetInfo: (Info,), GetInterfaceDescription: (Description,)}
_KINDS = {f"{messages.INTERFACE}.{kind.__name__}": kind for kind in REPLIES}
_KINDS |= {f"{_SERVICE}.{kind.__name__}": kind for kind in _SERVICE_REPLIES}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ALTERNATIVES = {kind for kinds in REPLIES.values() if len(kinds) > 1 for kind in kinds}


@record
class WireCall:
    """A decoded call. ``more``: the caller accepts several replies."""

    message: Any  # one of the calls of :mod:`.messages`, or a question of varlink's own
    more: bool


@record
class Reply:
    """A reply without an error. ``continues``: another one follows."""

    message: Any
    continues: bool


class Encoded(str):
    """JSON that was encoded before. It is written unchanged in place of a text."""

    __slots__ = ()


class BadCall(ValueError):
    """A frame that is not a call of this interface. ``reply`` is the answer to the caller.

    ``is_noise``: it is not even varlink's JSON, so the sender is disconnected.
    """

    def __init__(self, text: str, name: str, parameters: dict[str, str], *, is_noise: bool = False) -> None:
        super().__init__(text)
        self.is_noise = is_noise
        self.reply = _frame({"error": f"{_SERVICE}.{name}", "parameters": parameters})


class BadReply(ValueError):
    """The frame is not a reply that we know."""


class ErrorReply(Exception):
    """The broker answered with an error.

    ``name`` is one of :data:`.messages.ERRORS`, or varlink's own in full.

    ``parameter`` is the invalid field, ``reason`` a stable word, ``busy`` why the request is not granted.
    Each is empty if the error lacks it.
    """

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        self.name = name
        self.message, self.where, self.hint, self.reason, self.parameter = (
            _text_of(parameters.get(key)) for key in ("message", "where", "hint", "reason", "parameter")
        )
        busy = parameters.get("busy")
        self.busy: Busy | None = None if busy is None else read_record(Busy, busy, is_strict=False)
        super().__init__(self.message or name)


def _text_of(value: Json) -> str:
    return visible(value) if isinstance(value, str) else ""


# -- writing ------------------------------------------------------------------------------------------------


def encode_call(message: Any, more: bool = False) -> bytes:
    """A call as a frame. Human-readable texts are made printable and cut; all else must be valid already.

    Raises ValueError if the frame would be too long.
    """
    call: dict[str, Any] = {"method": _NAMES[type(message)], "parameters": texts_cut(message)}
    if more:
        call["more"] = True
    frame = _frame(call)
    if len(frame) > messages.MOST_BYTES:
        raise ValueError(f"a request of {len(frame)} bytes; at most {messages.MOST_BYTES} are possible")
    return frame


def encode_reply(message: Any, continues: bool = False) -> bytes:
    kind = type(message)
    reply: dict[str, Any] = {
        "parameters": {kind.__name__.lower(): message} if kind in _ALTERNATIVES else message
    }
    if continues:
        reply["continues"] = True
    return _frame(reply)


def encode_error(name: str, message: str, where: str = "", hint: str = "", **more: Any) -> bytes:
    """An error as a frame; ``name`` is one of :data:`.messages.ERRORS`."""
    if name not in messages.ERRORS:
        raise ValueError(f"the interface has no error {name}")
    given = {key: value for key, value in more.items() if value is not None}
    parameters = {"message": message, "where": where, "hint": hint, **given}
    return _frame({"error": f"{messages.INTERFACE}.{name}", "parameters": parameters})


def encoded(message: Any) -> Encoded:
    """A record as JSON, for use in several replies."""
    return Encoded("".join(_encode(message, 0)))


def _frame(value: dict[str, Any]) -> bytes:
    return "".join(_encode(value, 0)).encode() + b"\0"


def _text(text: str) -> str:
    if type(text) is Encoded:
        return text
    return encode_basestring(text if text.isprintable() else visible(text, "\n"))


def _fields_of(message: Any) -> dict[str, Any]:
    """The fields of a record that are not empty. Pairs become an object."""
    kind = type(message)
    if kind not in _pairs_of:
        annotations = kind.__annotations__.items()
        _pairs_of[kind] = tuple(name for name, each in annotations if each.startswith("tuple[tuple["))
    found = {name: value for name in kind.__annotations__ if (value := getattr(message, name)) is not None}
    for name in _pairs_of[kind]:
        found[name] = dict(found[name])
    return found


_pairs_of: dict[type, tuple[str, ...]] = {}
# The arguments of json.JSONEncoder: no markers of cycles, no indent, short separators, no NaN.
_encode: Any = make_encoder(None, _fields_of, _text, None, ":", ",", False, False, False)


# -- reading ------------------------------------------------------------------------------------------------


def decode_call(frame: bytes) -> WireCall:
    """The call in a frame, with or without its NUL. Raises BadCall and nothing else, whatever the bytes."""
    try:
        found = _parse(frame)
        more = _call_flags(found)
        method = found["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadCall(
            f"no call: {error}", "InvalidParameter", {"parameter": "method"}, is_noise=True
        ) from error
    kind = _KINDS.get(method)
    if kind is None:
        raise _unknown(method)
    try:
        return WireCall(read_record(kind, found.get("parameters", {}), is_strict=True), more)
    except BadField as bad:
        why = {"parameter": bad.name, "message": str(bad)}
        raise BadCall(f"{method}: {bad}", "InvalidParameter", why) from bad


def _call_flags(found: dict[str, Json]) -> bool:
    """Whether a call wants more than one reply. Raises ValueError for flags unknown to varlink or to us."""
    if not found.keys() <= {"method", "parameters", "more", "oneway", "upgrade"}:
        raise ValueError("it has fields that are not varlink's")
    more, *others = (found.get(name, False) for name in ("more", "oneway", "upgrade"))
    if others != [False, False] or type(more) is not bool:
        raise ValueError("oneway and upgrade are not supported")
    if type(found["method"]) is not str:
        raise ValueError("its method is not a text")
    return more


def no_interface(interface: str) -> bytes:
    """The error that an interface is not served here, as a frame."""
    return _unknown(f"{interface}.").reply


def _unknown(method: str) -> BadCall:
    interface, _, _ = method.rpartition(".")
    if interface in (messages.INTERFACE, _SERVICE):
        return BadCall("unknown method", "MethodNotFound", {"method": method})
    return BadCall("unknown interface", "InterfaceNotFound", {"interface": interface})


def decode_reply(kind: type, frame: bytes) -> Reply:
    """The reply to a call of that kind. Unknown fields, which a newer broker may have added, are left out.

    Raises ErrorReply for an error, BadReply for a frame that is not a reply.
    """
    try:
        found = _parse(frame)
        parameters = found.get("parameters", {})
        if "error" in found:
            raise ErrorReply(str(found["error"]).removeprefix(f"{messages.INTERFACE}."), parameters or {})
        kinds = (REPLIES | _SERVICE_REPLIES)[kind]
        if len(kinds) > 1:
            [(name, parameters)] = [
                (each.__name__, parameters[each.__name__.lower()])
                for each in kinds
                if parameters.get(each.__name__.lower()) is not None
            ]
            kinds = tuple(each for each in kinds if each.__name__ == name)
        return Reply(
            read_record(kinds[0], parameters, is_strict=False), found.get("continues", False) is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadReply(f"not a broker's reply: {error}") from error


def _parse(frame: bytes) -> dict[str, Json]:
    """The JSON object of a frame. Raises ValueError."""
    text = frame.removesuffix(b"\0").decode()  # a UnicodeDecodeError is a ValueError
    if not text.startswith("{"):
        raise ValueError("not a JSON object")
    if text.count("{") + text.count("[") > MOST_DEPTH and _depth(text) > MOST_DEPTH:
        raise ValueError("nested too deeply")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("a value is missing") from None
    if end != len(text):
        raise ValueError("data after the end")
    if type(value) is not dict:
        raise ValueError("not a JSON object")
    return value


def _depth(text: str) -> int:
    """How deeply its brackets are nested. Strings in valid JSON are skipped."""
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    depth = deepest = 0
    for character in "".join(outside):
        if character in "{[":
            depth += 1
            deepest = max(depth, deepest)
        elif character in "}]":
            depth -= 1
    return deepest


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a repeated key")
    return found


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS + 1:
        raise ValueError("a number with too many digits")
    return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ValueError(f"{text[:20]} is not finite")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


class _Rules:
    """The interface that the scanner requires."""

    strict = True  # no control characters in strings
    object_hook = None
    object_pairs_hook = staticmethod(_pairs)
    parse_float = staticmethod(_fraction)
    parse_int = staticmethod(_whole)
    parse_constant = staticmethod(_constant)


_rules: Any = _Rules()
_scan = make_scanner(_rules)
