"""The interface in varlink's language, as ``varlinkctl introspect`` requests it.

It is generated from the records of :mod:`.messages`, so it describes exactly what the decoder accepts.
"""

from __future__ import annotations

from slicer.broker.protocol import messages
from slicer.broker.protocol.fields import RECORDS
from slicer.broker.protocol.wire import (
    REPLIES,
    Description,
    GetInfo,
    GetInterfaceDescription,
    Info,
    encode_reply,
    no_interface,
)
from slicer.version import __version__

SERVICE = "org.varlink.service"
_PLAIN = ("int", "float", "bool")
# A type and an error of the same name would be two members with one name.
_TYPE_NAMES = {"Busy": "Shortage"}
_MORE_OF_ERRORS = {"Busy": "busy: ?Shortage", "NoGpu": "reason: string"}

_SERVICE_TEXT = """\
interface org.varlink.service

method GetInfo() -> (
  vendor: string,
  product: string,
  version: string,
  url: string,
  interfaces: []string
)

method GetInterfaceDescription(interface: string) -> (description: string)

error InterfaceNotFound (interface: string)
error MethodNotFound (method: string)
error MethodNotImplemented (method: string)
error InvalidParameter (parameter: string)
error PermissionDenied ()
error ExpectedMore ()
"""


def answer(question: GetInfo | GetInterfaceDescription) -> bytes:
    """The answer to one of varlink's own questions, as a frame."""
    if not isinstance(question, GetInterfaceDescription):
        served = (messages.INTERFACE, SERVICE)
        url = "man:slicer-broker(8)"
        return encode_reply(Info("slicer", "slicer-broker", __version__, url, served))
    if question.interface == SERVICE:
        return encode_reply(Description(_SERVICE_TEXT))
    if question.interface == messages.INTERFACE:
        return encode_reply(Description(description()))
    return no_interface(question.interface)


def description() -> str:
    parts = [
        f"# One ledger of GPUs and slots for all users of a machine. Version {messages.VERSION}.\n"
        f"# Sizes are MiB, times seconds on CLOCK_BOOTTIME.\ninterface {messages.INTERFACE}"
    ]
    # If a call has one of several replies, each needs a type of its own.
    replies = {kind.__name__: kind for kinds in REPLIES.values() if len(kinds) > 1 for kind in kinds}
    parts += [
        f"{_comment(kind)}type {_TYPE_NAMES.get(name, name)} {_struct(kind)}"
        for name, kind in (RECORDS | replies).items()
    ]
    for kind, kinds in REPLIES.items():
        parts.append(f"{_comment(kind)}method {kind.__name__}{_struct(kind)} -> {_output(kinds)}")
    for name in messages.ERRORS:
        fields = ["message: string", "where: string", "hint: string", _MORE_OF_ERRORS.get(name, "")]
        parts.append(f"error {name} ({', '.join(filter(None, fields))})")
    return "\n\n".join(parts) + "\n"


def _output(replies: tuple[type, ...]) -> str:
    if len(replies) == 1:
        return _struct(replies[0])
    return f"({', '.join(f'{kind.__name__.lower()}: ?{kind.__name__}' for kind in replies)})"


def _struct(kind: type) -> str:
    fields = [f"  {name}: {_type_of(kind, name)}" for name in kind.__annotations__]
    return "(\n" + ",\n".join(fields) + "\n)" if fields else "()"


def _type_of(kind: type, name: str) -> str:
    annotation = kind.__annotations__[name]
    is_optional = annotation.endswith(" | None") or hasattr(kind, name)
    return ("?" if is_optional else "") + _type(annotation.removesuffix(" | None"))


def _type(annotation: str) -> str:
    if annotation == "tuple[tuple[str, str], ...]":
        return "[string]string"
    if annotation.startswith("tuple["):
        return "[]" + _type(annotation[len("tuple[") : -len(", ...]")])
    if annotation.startswith("dict[str, "):
        return "[string]" + _type(annotation[len("dict[str, ") : -1])
    if annotation in RECORDS:
        return _TYPE_NAMES.get(annotation, annotation)
    return annotation if annotation in _PLAIN else "string"


def _comment(kind: type) -> str:
    first = (kind.__doc__ or "").partition("\n")[0].replace(":class:", "").replace("`", "")
    return f"# {first}\n" if first else ""
