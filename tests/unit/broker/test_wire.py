"""What goes over the broker's socket, and what is refused there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slicer.broker.protocol import messages, wire
from slicer.broker.protocol.fields import MOST_ITEMS
from slicer.record import replace
from tests.unit.broker.messages import BUSY, CALLS, JOB, LEASE, OTHER, REPLIES, SERIES

pytestmark = pytest.mark.both_pythons

ACQUIRE = CALLS[0]
METHOD = "io.slicer.Broker."


def frame(method: str, parameters: Any, **more: Any) -> bytes:
    return json.dumps({"method": METHOD + method, "parameters": parameters, **more}).encode() + b"\0"


def said(message: Any) -> dict[str, Any]:
    """The parameters of a call as anybody's JSON reads them."""
    found: dict[str, Any] = json.loads(wire.encode_call(message).removesuffix(b"\0"))["parameters"]
    return found


@pytest.mark.parametrize("message", CALLS, ids=lambda each: type(each).__name__)
def test_a_call_arrives_as_it_was_sent(message: Any) -> None:
    for more in (False, True):
        sent = wire.encode_call(message, more)
        assert sent.endswith(b"}\0")
        assert sent.count(b"\0") == 1
        assert wire.decode_call(sent) == wire.WireCall(message, more)


@pytest.mark.parametrize(("kind", "message"), REPLIES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_reply_arrives_as_it_was_sent(kind: type, message: Any) -> None:
    for continues in (False, True):
        sent = wire.encode_reply(message, continues)
        assert wire.decode_reply(kind, sent) == wire.Reply(message, continues)


def test_an_error_arrives_with_its_reason() -> None:
    sent = wire.encode_error("Busy", "gpu is busy", "--gpus", "wait", busy=BUSY)
    with pytest.raises(wire.ErrorReply) as caught:
        wire.decode_reply(messages.Acquire, sent)
    error = caught.value
    assert (error.name, error.message, error.where, error.hint) == ("Busy", "gpu is busy", "--gpus", "wait")
    assert error.busy == BUSY
    assert json.loads(sent[:-1])["error"] == "io.slicer.Broker.Busy"


def test_texts_for_people_are_cut_and_printable_before_they_are_sent() -> None:  # S11
    wild = replace(ACQUIRE, name="\x1b[2J\udc80" + "x" * 999, command="a\nb" * 9999)
    heard = wire.decode_call(wire.encode_call(wild)).message
    assert len(heard.name) <= messages.MOST_NAME
    assert heard.name.startswith("\\x1b[2J\\x80x")
    assert len(heard.command) <= messages.MOST_COMMAND
    assert heard.command.isprintable()


def test_a_newer_broker_is_understood() -> None:
    sent = json.loads(wire.encode_reply(messages.Granted(LEASE, 0.25))[:-1])
    sent["parameters"]["granted"]["lease"]["colour"] = "red"
    sent["parameters"]["granted"]["mood"] = ["fine"]
    sent["parameters"]["granted"]["lease"]["name"] = "a\x1b[0mb"  # what it should not send, is not shown
    heard = wire.decode_reply(messages.Acquire, json.dumps(sent).encode()).message
    assert heard == messages.Granted(replace(LEASE, name="a\\x1b[0mb"), 0.25)


GOOD = said(ACQUIRE)
START = said(CALLS[1])
FINISHED = said(CALLS[3])
DEEP = b"[" * 9000 + b"]" * 9000

# Not JSON of varlink's: whoever sends it is hung up on.
NOISE: tuple[bytes, ...] = (
    b"", b"\0", b"{", b"[]", b"{}", b"null", b'"x"', b"GET / HTTP/1.1", b"\xff\xfe", b"{}{}", b" {}",
    frame("Status", {}) + b"x", DEEP, b'{"method":' + DEEP[:16000], b'{"a":' * 3000,
    b'{"method":"io.slicer.Broker.Status","method":"io.slicer.Broker.Status"}',
    b'{"method":"io.slicer.Broker.Status","parameters":{},"parameters":{}}',
    b'{"method":7}', b'{"method":null}', b'{"method":["io.slicer.Broker.Status"]}',
    frame("Status", {}, oneway=True), frame("Status", {}, upgrade=True), frame("Status", {}, more=1),
    frame("Status", {}, surprise=1), frame("Status", {}, more="true"),
    b'{"method":"io.slicer.Broker.Release","parameters":{"job":"\x1b"}}',
    b'{"method":"io.slicer.Broker.Release","parameters":{"job":"0123456789ab","job":"0123456789ab"}}',
    *(
        b'{"method":"io.slicer.Broker.Acquire","parameters":{"priority":%s}}' % number
        for number in (b"9" * 4200, *b"NaN Infinity -Infinity 1e999 -1e999 01 0x1 +1".split())
    ),
)  # fmt: skip


@pytest.mark.parametrize("data", NOISE, ids=lambda data: repr(data[:50]))
def test_noise_is_no_call(data: bytes) -> None:  # L1, S7
    with pytest.raises(wire.BadCall) as caught:
        wire.decode_call(data)
    assert caught.value.is_noise
    assert json.loads(caught.value.reply[:-1])["error"].startswith("org.varlink.service.")


# What a field may not say, and which one is named to the caller.
LIES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("Acquire", GOOD | {"uid": 0}, "uid"),
    ("Acquire", GOOD | {"pid": 1}, "pid"),
    ("Acquire", GOOD | {"arrived_s": 0}, "arrived_s"),
    ("Acquire", GOOD | {"inside": ["../x"]}, "inside"),
    ("Acquire", GOOD | {"inside": OTHER}, "inside"),
    ("Acquire", {name: value for name, value in GOOD.items() if name != "gpus"}, "gpus"),
    ("Acquire", GOOD | {"gpus": None}, "gpus"),
    ("Acquire", GOOD | {"gpus": True}, "gpus"),
    ("Acquire", GOOD | {"gpus": 1.0}, "gpus"),
    ("Acquire", GOOD | {"gpus": -1}, "gpus"),
    ("Acquire", GOOD | {"gpus": 1 << 40}, "gpus"),
    ("Acquire", GOOD | {"gpus": "1"}, "gpus"),
    ("Acquire", GOOD | {"gpu_choice": "0"}, "gpu_choice"),
    ("Acquire", GOOD | {"gpu_choice": ["../../x"]}, "gpu_choice"),
    ("Acquire", GOOD | {"gpu_choice": ["0"] * (MOST_ITEMS + 1)}, "gpu_choice"),
    ("Acquire", GOOD | {"gpu_choice": [["0"]]}, "gpu_choice"),
    ("Acquire", GOOD | {"job": "../../etc/pw"}, "job"),
    ("Acquire", GOOD | {"job": JOB.upper()}, "job"),
    ("Acquire", GOOD | {"job": JOB + "\n"}, "job"),
    ("Acquire", GOOD | {"ahead_of": "x"}, "ahead_of"),
    ("Acquire", GOOD | {"name": "\x1b]0;owned\x07"}, "name"),
    ("Acquire", GOOD | {"name": "a\nb"}, "name"),
    ("Acquire", GOOD | {"name": "\ud800"}, "name"),
    ("Acquire", GOOD | {"name": "\u202etxt.exe"}, "name"),
    ("Acquire", GOOD | {"name": "x" * 201}, "name"),
    ("Acquire", GOOD | {"command": "\x00"}, "command"),
    ("Acquire", GOOD | {"command": "x" * 4097}, "command"),
    ("Acquire", GOOD | {"binding": "forever"}, "binding"),
    ("Acquire", GOOD | {"vram_mib": -1}, "vram_mib"),
    ("Acquire", GOOD | {"margin_mib": -(1 << 40)}, "margin_mib"),
    ("Acquire", GOOD | {"slots": {"cpu": 0}}, "slots"),
    ("Acquire", GOOD | {"slots": {"cpu": -50}}, "slots"),
    ("Acquire", GOOD | {"slots": {"../x": 1}}, "slots"),
    ("Acquire", GOOD | {"slots": {"": 1}}, "slots"),
    ("Acquire", GOOD | {"slots": {"a\x1b": 1}}, "slots"),
    ("Acquire", GOOD | {"slots": {f"s{n}": 1 for n in range(MOST_ITEMS + 1)}}, "slots"),
    ("Acquire", GOOD | {"slots": [["cpu", 1]]}, "slots"),
    ("Acquire", GOOD | {"priority": 101}, "priority"),
    ("Acquire", GOOD | {"priority": -102}, "priority"),
    ("Acquire", GOOD | {"expect_s": -1}, "expect_s"),
    ("Acquire", GOOD | {"expect_s": 1e300}, "expect_s"),
    ("Acquire", GOOD | {"max_wait_s": -0.5}, "max_wait_s"),
    ("Acquire", GOOD | {"wait": 1}, "wait"),
    ("Acquire", GOOD | {"wait": "yes"}, "wait"),
    ("Acquire", [GOOD], "parameters"),
    ("Acquire", None, "parameters"),
    ("Start", START | {"unit": "ssh.service"}, "unit"),
    ("Acquire", GOOD | {"pid_start": 0}, "pid_start"),
    ("Start", START | {"user": "root"}, "user"),
    ("Start", START | {"properties": {"Delegate": "yes"}}, "properties"),
    ("Start", START | {"cgroup": "/"}, "cgroup"),
    ("Start", START | {"slice": "cpu-0"}, "slice"),
    ("Start", START | {"description": "a\x1b]0;b\x07"}, "description"),
    ("Start", START | {"slice": "system.slice"}, "slice"),
    ("Start", START | {"slice": "-.slice"}, "slice"),
    ("Start", START | {"description": "x" * 201}, "description"),
    ("Start", START | {"limits": {"MemoryMax\n": "1"}}, "limits"),
    ("Start", START | {"limits": {"Memory Max": "1"}}, "limits"),
    ("Start", START | {"limits": {"MemoryMax": 1}}, "limits"),
    ("Start", START | {"limits": {"MemoryMax": "1\n[Scope]"}}, "limits"),
    ("Start", START | {"limits": {"MemoryMax": "x" * 1025}}, "limits"),
    ("Start", START | {"limits": [["MemoryMax", "1"]]}, "limits"),
    ("Finished", FINISHED | {"reason": "murdered"}, "reason"),
    ("Finished", FINISHED | {"exit_code": 256}, "exit_code"),
    ("Finished", FINISHED | {"wall_s": -1.0}, "wall_s"),
    ("Finished", FINISHED | {"memory_peak_bytes": -1}, "memory_peak_bytes"),
    ("Finished", FINISHED | {"vram_peak_mib": [-1]}, "vram_peak_mib"),
    ("Sampled", {"job": JOB, "series": "öl"}, "series"),
    ("Sampled", {"job": JOB, "series": SERIES[:-4]}, "series"),
    ("Sampled", {"job": JOB, "series": SERIES + "\n"}, "series"),
    ("Sampled", {"job": JOB, "series": ""}, "series"),
    ("Sampled", {"job": "../x", "series": SERIES}, "job"),
    ("Stop", {"job": JOB, "user": "root"}, "user"),
    ("Status", {"user": "root"}, "user"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "parameters", "named"), LIES, ids=[f"{m}-{n}-{i}" for i, (m, _, n) in enumerate(LIES)]
)
def test_a_field_that_cannot_be_is_named(method: str, parameters: Any, named: str) -> None:  # L1, S7
    with pytest.raises(wire.BadCall) as caught:
        wire.decode_call(frame(method, parameters))
    assert not caught.value.is_noise
    reply = json.loads(caught.value.reply[:-1])
    assert reply["error"] == "org.varlink.service.InvalidParameter"
    assert reply["parameters"]["parameter"] == named
    assert reply["parameters"]["message"].isprintable()


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("io.slicer.Broker.Reboot", "MethodNotFound"),
        ("io.slicer.Broker.acquire", "MethodNotFound"),
        ("io.slicer.Broker.", "MethodNotFound"),
        ("org.varlink.service.Reboot", "MethodNotFound"),
        ("io.systemd.Manager.Describe", "InterfaceNotFound"),
        ("Status", "InterfaceNotFound"),
        ("\x1b[2J", "InterfaceNotFound"),
    ],
)
def test_what_is_not_served_is_said_in_varlinks_words(method: str, error: str) -> None:
    with pytest.raises(wire.BadCall) as caught:
        wire.decode_call(json.dumps({"method": method}).encode())
    assert json.loads(caught.value.reply[:-1])["error"] == f"org.varlink.service.{error}"


@pytest.mark.parametrize("data", [*NOISE, b'{"parameters":{}}', b'{"error":"x","parameters":7}'])
def test_a_reply_of_nobody_we_know_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises((wire.BadReply, wire.ErrorReply)):
        wire.decode_reply(messages.Acquire, data)


def test_brackets_within_texts_are_no_depth() -> None:
    name = '[{"\\' * 50
    assert wire.decode_call(wire.encode_call(replace(ACQUIRE, name=name))).message.name == name
