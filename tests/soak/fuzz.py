"""Feeds broken files to everything that reads back what others may have written.

``python -m tests.soak.fuzz`` (a part of ``make soak``) does so for a while, with a seed that makes it the
same again; tests/unit/state/test_hostile_files.py asks the same of the same readers. To add a reader: write a
check, and name it in TARGETS with good files of its kind.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from slicer.broker.protocol import messages, wire
from slicer.gpu.sim.usage import Use
from slicer.job.job import Started
from slicer.job.report import KeeperReport
from slicer.ledger import tickets
from slicer.model import Lease, Outcome, Request, Ticket, Usage
from slicer.outcome.outcome_file import outcome_json
from slicer.queue.state import attempt
from slicer.record import replace
from slicer.state import statefile
from tests.unit import made_up
from tests.unit.broker import messages as broker

JOB = "0123456789ab"
OTHER = "ba9876543210"
UNIT = f"slicer-{JOB}.scope"
BOOT_ID = "0b6f6b0c-1111-2222-3333-444455556666"

# What a field may be made to say.
HOSTILE: tuple[bytes, ...] = (
    b"", b"\0", b"\\0", b"\\", b"\\n", b"..", b"/", b"../../fifo", b"-50", b"-1", b"0", b"1", b"1_000", b" 1",
    b"9" * 19, b"9" * 4200, b"1" + b"0" * 30, b"nan", b"inf", b"-inf", b"1e999", b"-0.0", b"0x10", b"None",
    b"\xff\xfe", "\u0664".encode(), b",", b",,", b"END=", OTHER.encode(), f"slicer-{OTHER}.scope".encode(),
    b"ssh.service", b"/system.slice/ssh.service", f"/gpu.slice/slicer-{OTHER}.scope".encode(),
    f"/gpu.slice/../../tmp/{UNIT}".encode(), f"/gpu.slice/\0/{UNIT}".encode(), f"//{UNIT}".encode(),
    f"/{UNIT}/cgroup.procs".encode(), UNIT.encode(), f"relative/{UNIT}".encode(), b"x" * (1 << 20),
    b"NaN", b"-Infinity", b"null", b"true", b"{}", b"[" * 2000, b'{"a":' * 2000,
    b'"\\ud800"', b'"\\u001b[2J"',
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader. ``check`` gives it some bytes, and tells whether they were accepted.

    It raises (anything) where the reader does what it must not: fail otherwise than it says, or accept what
    cannot be.
    """

    good: tuple[bytes, ...]
    check: Callable[[bytes], bool]


# -- what must be true of what is accepted ------------------------------------------------------------------


def _is_job(text: Any) -> bool:
    return bool(re.fullmatch("[0-9a-f]{12}", text))


def _is_sane(name: str, value: Any) -> bool:
    """Whether a field may say that, whatever the record; told again here, apart from slicer's own rules."""
    if isinstance(value, tuple):
        return all(_is_sane(name, each) for each in value)
    if isinstance(value, dict):
        return all(_SLOT.fullmatch(slot) and 0 < count <= 2**20 for slot, count in value.items())
    if isinstance(value, int | float):
        least, most = _BETWEEN.get(name, (-_MANY, _MANY) if isinstance(value, int) else (-math.inf, math.inf))
        return math.isfinite(value) and least <= value <= most and not isinstance(value, bool)
    if name in ("job", "inside"):
        return _is_job(value)
    if name in ("gpus", "gpu_choice"):
        return bool(re.fullmatch("[A-Za-z0-9-]{1,80}", value))
    if name == "unit":
        return bool(re.fullmatch(r"(slicer-[0-9a-f]{12}\.scope)?", value))
    if name == "cgroup":
        return not value or bool(re.fullmatch(r"(/[^/\0]+)+", value))
    return True


_MANY = 10**19
_SLOT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_BETWEEN = {
    "pid": (0, 2**22), "keeper": (0, 2**22), "pid_start": (0, 2**62), "started": (0, 2**62),
    "uid": (0, 2**32 - 2), "gpus": (0, 2**20), "vram_mib": (0, 2**40), "margin_mib": (0, 2**40),
    "vram_peak_mib": (0, 2**40), "mib": (0, 2**40), "utilisation": (0, 100), "cpu_slots": (0, 2**20),
    "priority": (-100, 100), "forced": (0, 1), "since_s": (0, 2**40),
    "arrived_s": (0, 2**40), "expect_s": (0, 2**40),
}  # fmt: skip


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise AssertionError(what)


def check_fields(found: Any) -> None:
    """Raises AssertionError where a record says what cannot be."""
    for name in found.__fields__:
        value = getattr(found, name)
        _expect(_is_sane(name, value), f"{name} is {value!r}"[:200])
    cgroup = getattr(found, "cgroup", "")
    _expect({".", ".."}.isdisjoint(cgroup.split("/")), f"cgroup is {cgroup!r}"[:200])
    limits = getattr(found, "slot_limits", None)
    _expect(limits is None or limits.keys() == found.slots.keys(), "its limits are those of other slots")
    if isinstance(found, Lease):
        own = ("", f"slicer-{found.job}.scope")
        _expect(found.unit in own or found.backend == "inner", f"{found.unit!r} is another job's")
        _expect(not cgroup or cgroup.endswith(f"/{found.unit}"), f"{cgroup!r} is another unit's")


# -- the readers --------------------------------------------------------------------------------------------


def _record(kind: type[Any]) -> Callable[[bytes], bool]:
    def check(data: bytes) -> bool:
        try:
            found = statefile.decode(kind, data)
        except statefile.TornFile:
            return False
        check_fields(found)
        _expect(statefile.decode(kind, statefile.encode(found)) == found, "it does not read back as written")
        return True

    return check


def check_ticket_name(data: bytes) -> bool:
    """A name comes from a directory, as any bytes that a file name may hold, and longer."""
    name = os.fsdecode(data)
    found = tickets.parse_name(name)
    if found is None:
        return False
    check_fields(found)
    _expect(tickets.name_of(found) == name.removesuffix("s"), "it is not the name that we would write")
    _expect(tickets.job_of(name) == found.job, "its job is another one")
    return True


def check_call(data: bytes) -> bool:
    """What a caller of the broker says: root reads it."""
    try:
        found = wire.decode_call(data)
    except wire.BadCall as bad:
        json.loads(bad.reply.removesuffix(b"\0"))
        return False
    _expect(wire.decode_call(wire.encode_call(found.message, found.more)) == found, "it says something else")
    _expect(len(data) <= messages.MOST_BYTES * 2, "it is too long")  # by the escapes of its texts
    for name in found.message.__fields__:
        value = getattr(found.message, name)
        _expect(isinstance(value, bool) or _is_sane(name, value), f"{name} is {value!r}"[:200])
        for text in _texts_in(value):
            _expect(text.isprintable() and len(text) <= 8192, f"{name} has {text!r}"[:200])
    return True


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for each in items for text in _texts_in(each)] if isinstance(items, (list, tuple)) else []


def check_reply(kind: type) -> Callable[[bytes], bool]:
    """What a broker says: its terminal is ours, but it is root's."""

    def check(data: bytes) -> bool:
        try:
            found = wire.decode_reply(kind, data)
        except wire.BadReply:
            return False
        except wire.ErrorReply as error:
            _expect(error.message.isprintable() and error.hint.isprintable(), "its texts are not printable")
            return False
        again = wire.decode_reply(kind, wire.encode_reply(found.message, found.continues))
        _expect(again == found, "it does not read back as written")
        return True

    return check


def _attempt_file(outcome: Outcome) -> bytes:
    line = json.dumps(outcome_json(outcome))
    return f'4211 4711\n{line[:-1]}, "provisional": true}}\n{line}\n'.encode()


def check_attempt(data: bytes) -> bool:
    found = attempt.decode(data, JOB, is_alive=False)
    _expect(0 <= found.keeper <= 2**22 and 0 <= found.keeper_start < _MANY, "its keeper cannot be")
    if found.outcome is None:
        return False
    _expect(found.outcome.job == JOB, "it is another job's")
    again = attempt.decode(_attempt_file(found.outcome), JOB, is_alive=False)
    _expect(again.outcome == found.outcome, "it does not read back as written")
    return True


LEASE = made_up.lease(
    JOB, boot_id=BOOT_ID, unit=UNIT, cgroup=f"/gpu.slice/{UNIT}", gpus=("GPU-a", "GPU-b"), vram_mib=8192,
    vram_peak_mib=(9000, 0), slots={"cpu": 2, "whisper-gpu": 1}, expect_s=60.0, name="a\nEND=\n\\",
)  # fmt: skip
TICKET = made_up.ticket(
    JOB, boot_id=BOOT_ID, inside=(OTHER,), gpus=1, gpu_choice=("GPU-a",), vram_mib=1024, expect_s=0.5,
    slots={"cpu": 1, "a.b": 2}, slot_limits={"cpu": 4, "a.b": 2},
)
_REQUESTS: tuple[Request, ...] = tuple(
    made_up.request(JOB, **fields)
    for fields in (
        {"cpu_slots": 1},
        {"slots": {"cpu": 1, "whisper-gpu": 2}, "slot_limits": {"cpu": 3, "whisper-gpu": 2}},
        {"gpus": 2, "vram_mib": 8192, "margin_mib": 512, "priority": -3},
        {"gpus": 1, "gpu_choice": ("GPU-a",), "arrived_s": 12.345678},
    )
)
_NAMES = tuple(tickets.name_of(request).encode() for request in _REQUESTS)

TARGETS: dict[str, Target] = {
    "lease": Target(
        (statefile.encode(LEASE), statefile.encode(replace(LEASE, backend="plain", unit="", cgroup=""))),
        _record(Lease),
    ),
    "ticket": Target((statefile.encode(TICKET),), _record(Ticket)),
    "use": Target((statefile.encode(Use(42, 4711, 90, ("SIM-0", "SIM-1"), (10, 20))),), _record(Use)),
    "report": Target((statefile.encode(KeeperReport(1, "exited", 256, wall_s=1.5)),), _record(KeeperReport)),
    "usage": Target(
        (statefile.encode(Usage(1.5, 1.0, oom_kills=0, memory_peak_bytes=2**62)), statefile.encode(Usage())),
        _record(Usage),
    ),
    "started": Target((statefile.encode(Started("", 1.7e9, 12.5, 0.5)),), _record(Started)),
    "ticket-name": Target(_NAMES, check_ticket_name),
    "attempt": Target(
        (_attempt_file(made_up.outcome(job=JOB, gpus=("GPU-a",), vram_peak_mib=(9000,), slots={"a-b": 2})),),
        check_attempt,
    ),
    "broker-call": Target(tuple(map(wire.encode_call, broker.CALLS)), check_call),
    **{
        f"broker-reply-{kind.__name__.lower()}": Target(
            tuple(wire.encode_reply(reply) for asked, reply in broker.REPLIES if asked is kind),
            check_reply(kind),
        )
        for kind in (messages.Acquire, messages.Status)
    },
}


# -- breaking files -----------------------------------------------------------------------------------------

_TOKENS = re.compile(rb"([\n=,/+:{}\[\]\"-])")


def _say_otherwise(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    chosen = random.randrange(len(lines))
    key, is_field, _ = lines[chosen].partition(b"=")
    lines[chosen] = key + is_field + random.choice(HOSTILE) if is_field else random.choice(HOSTILE)
    return b"\n".join(lines)


def _change_a_token(random: Random, data: bytes) -> bytes:
    tokens = _TOKENS.split(data)
    tokens[random.randrange(len(tokens))] = random.choice(HOSTILE)
    return b"".join(tokens)


def _change_a_byte(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((b"", random.randbytes(1), b"\n", b"\0")) + data[at + 1 :]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _repeat_a_part(random: Random, data: bytes) -> bytes:
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin:end] + data[end:]


def _swap_lines(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    one, other = (random.randrange(len(lines)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _make_noise(random: Random, data: bytes) -> bytes:
    return random.randbytes(random.randrange(200))


_WAYS = (
    _say_otherwise, _say_otherwise, _say_otherwise, _change_a_token, _change_a_token, _change_a_byte, _cut,
    _repeat_a_part, _swap_lines, _make_noise,
)  # fmt: skip


def broken(random: Random, target: Target) -> bytes:
    """A good file of the target, broken in one to three ways."""
    data = random.choice(target.good)
    for _ in range(random.randint(1, 3)):
        data = random.choice(_WAYS)(random, data)
    return data


# -- a run of it --------------------------------------------------------------------------------------------


def run(seconds: float, seed: int) -> str:
    """Feed all readers for so long. Returns a summary.

    Raises AssertionError with a line that does it again.
    """
    random = Random(seed)
    tried = accepted = 0
    for name, target in TARGETS.items():
        for good in target.good:
            if not target.check(good):
                raise AssertionError(f"{name}: a good file is refused: {good!r}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, target in TARGETS.items():
            data = broken(random, target)
            try:
                accepted += target.check(data)
            except Exception as error:
                what = f"{type(error).__name__}: {str(error)[:200]}"
                raise AssertionError(f"{again(name, data)}  # {what}") from error
            tried += 1
    return f"{tried} broken files read, {accepted} of them accepted as whole"


def again(name: str, data: bytes) -> str:
    """The command that gives a reader the same bytes again."""
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    return f"python -m tests.soak.fuzz --reader {name} --input {text}"


def given(text: str) -> bytes:
    """The bytes that :func:`again` was told."""
    return zlib.decompress(base64.b64decode(text))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--reader", choices=TARGETS, help="with --input: read that once")
    parser.add_argument("--input", help="as a failure names it")
    chosen = parser.parse_args()
    if chosen.reader and chosen.input:
        print("accepted" if TARGETS[chosen.reader].check(given(chosen.input)) else "refused")
        return 0
    print(f"fuzzing for {chosen.seconds:.0f} s: --seed {chosen.seed}", file=sys.stderr, flush=True)
    try:
        print(run(chosen.seconds, chosen.seed))
    except AssertionError as failed:
        print(f"BROKEN (--seed {chosen.seed}): {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
