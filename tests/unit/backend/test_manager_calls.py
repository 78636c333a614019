"""What systemd is asked, and how its answers are understood, whichever binding of D-Bus asks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from pystemd.dbusexc import DBusError

from slicer.backend import manager_calls as calls
from slicer.backend import pystemd_bus
from slicer.backend.manager_calls import BusError, Call, UnitExists, UnitGone
from slicer.errors import BackendError, RefusedError
from slicer.model import Property, ScopeSpec
from slicer.record import replace

UNIT = "slicer-x.scope"
WEIGHT = Property("CPUWeight", "CPUWeight", "t", 7, "7")
SPEC = ScopeSpec(UNIT, "cpu.slice", "a test's", (WEIGHT,), "user")
ERROR = "org.freedesktop.DBus.Error."
SYSTEMD = "org.freedesktop.systemd1."
DONE = ("done",)
BUSY = BusError(f"{SYSTEMD}UnitBusy", "busy")
FAILED = BusError(f"{ERROR}Failed", "it broke")
ENDING = ("/unit",), ("deactivating",)
GONE = BusError(f"{SYSTEMD}NoSuchUnit", "not loaded")
OLD = BusError(f"{ERROR}PropertyReadOnly", "Cannot set property PIDFDs, or unknown property.")


def talk(steps: Generator[Any, Any, Any], *answers: Any) -> tuple[list[Any], Any]:
    """What is asked (methods, and pauses as numbers) and what is the result, an error included."""
    asked: list[Any] = []
    left = list(answers)
    try:
        step = next(steps)
        while True:
            asked.append(step.name.rpartition(".")[2] if isinstance(step, Call) else step)
            step = steps.send(left.pop(0) if isinstance(step, Call) else None)
    except StopIteration as end:
        found = end.value
    except BackendError as error:
        found = error
    assert not left
    return asked, found


def properties(call: Call) -> list[tuple[str, Any]]:
    """Names and values among a call's arguments."""
    told = next(value for signature, value in call.arguments if signature == "a(sv)")
    return [(name, value) for name, (_, value) in told]


# Q1: what systemd says of the job itself is final
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{ERROR}InvalidArgs", RefusedError),
        (f"{ERROR}LimitsExceeded", BackendError),
        (f"{ERROR}NoReply", BackendError),
        (f"{SYSTEMD}UnitExists", UnitExists),
        (calls.LATE, BackendError),
    ],
)
def test_which_words_of_systemd_are_final(name: str, kind: type[BackendError]) -> None:
    asked, error = talk(calls.start_scope(SPEC, 3, lambda: 4), BusError(name, "no"))
    assert (asked, type(error)) == (["StartTransientUnit"], kind)
    assert ("stuck" if name == calls.LATE else "asked for CPUWeight=7") in error.hint


def test_a_systemd_without_pidfds_is_given_the_pid() -> None:  # L1
    steps = calls.start_scope(SPEC, 3, lambda: 4)
    assert properties(next(steps))[-2:] == [("CPUWeight", 7), ("PIDFDs", [3])]
    assert properties(steps.send(OLD))[-2:] == [("CPUWeight", 7), ("PIDs", [4])]
    with pytest.raises(BackendError, match=r"ended as 'failed' \(see journalctl --user"):
        steps.send(("failed",))


def of_own_slice() -> Generator[Any, Any, Any]:
    """The start of a scope in a slice of its job's own."""
    stop = Property("TimeoutStopSec", "TimeoutStopUSec", "t", 4, "4us")
    oom = Property("OOMPolicy", "OOMPolicy", "s", "stop", "stop")
    spec = ScopeSpec(UNIT, "gpu.slice", "a test's", (WEIGHT, stop, oom), "system", within="gpu-x.slice")
    return calls.start_scope(spec, 3, lambda: 4)


def test_a_jobs_own_slice_has_the_limits_and_its_scope_the_rest() -> None:  # K3, U5
    steps = of_own_slice()
    first = next(steps)
    assert [value for signature, value in first.arguments if signature == "s"] == ["gpu-x.slice", "fail"]
    assert properties(first)[2:] == [("CPUWeight", 7)]
    assert properties(steps.send(DONE)) == [("CPUWeight", 7)]  # once more: drop-ins follow the first
    told = properties(steps.send(()))
    assert ("Slice", "gpu-x.slice") in told
    assert ("PropagatesStopTo", ["gpu-x.slice"]) in told
    assert told[5:] == [("TimeoutStopUSec", 4), ("OOMPolicy", "stop"), ("PIDFDs", [3])]


@pytest.mark.parametrize(
    ("answers", "asked", "kind"),
    [
        *(
            ([there, (), DONE], ["StartTransientUnit", "SetUnitProperties", "StartTransientUnit"], None)
            for there in (DONE, BusError(f"{SYSTEMD}UnitExists", "there"))
        ),
        ([DONE, FAILED], ["StartTransientUnit", "SetUnitProperties"], BackendError),
        ([FAILED], ["StartTransientUnit"], BackendError),
    ],
)  # fmt: skip
def test_no_scope_is_started_in_a_slice_without_the_limits(
    answers: list[Any], asked: list[str], kind: type[BackendError] | None
) -> None:  # K3, U5
    found, error = talk(of_own_slice(), *answers)
    assert (found, kind and type(error)) == (asked, kind)


# A2: somebody freezes it while it is to stop
@pytest.mark.parametrize(
    ("answers", "asked", "said"),
    [
        ([DONE], ["StopUnit"], None),
        ([GONE], ["StopUnit"], None),
        ([("frozen",), (None,), DONE], ["StopUnit", "ThawUnit", "StopUnit"], None),
        ([("frozen",), BUSY, GONE], ["StopUnit", "ThawUnit", calls._PAUSE_S, "StopUnit"], None),
        ([BusError(f"{ERROR}AccessDenied", "no")], ["StopUnit"], "systemd did not stop slicer-x.scope: no"),
    ],
)
def test_a_frozen_unit_is_thawed_to_stop(answers: list[Any], asked: list[Any], said: str | None) -> None:
    found, error = talk(calls.stop(UNIT), *answers)
    assert (found, error and error.message) == (asked, said)


def test_nobody_tries_forever_to_stop_a_unit() -> None:  # A2
    _, error = talk(calls.stop(UNIT), *[("frozen",), (None,)] * (calls._THAWS + 1))
    assert "repeatedly frozen" in str(error)


# J7
@pytest.mark.parametrize(
    ("answers", "may_directly", "kind"),
    [
        ([(None,)], False, type(None)),
        ([GONE], True, UnitGone),
        ([BUSY, *ENDING, *ENDING], True, type(None)),
        ([BUSY, *ENDING, ENDING[0], BusError(f"{ERROR}UnknownProperty", ""), ENDING[1]], False, BackendError),
        ([FAILED, ("/unit",), ("active",)], True, BackendError),
    ],
)
def test_only_a_unit_that_is_ending_is_thawed_behind_systemds_back(
    answers: list[Any], may_directly: bool, kind: type[object]
) -> None:
    assert type(talk(calls.thaw(UNIT, lambda: may_directly), *answers)[1]) is kind


@pytest.mark.parametrize("verb", ["FreezeUnit", "ThawUnit"])
def test_who_freezes_or_thaws_waits_for_another_who_does(verb: str) -> None:  # U23
    def steps() -> Any:
        return calls.freeze(UNIT) if verb == "FreezeUnit" else calls.thaw(UNIT, lambda: False)

    active = [BUSY, ("/unit",), ("active",)]
    asked, found = talk(steps(), *active, *active, ())
    assert [each for each in asked if not str(each).startswith("Get")] == [verb, 0.05, verb, 0.05, verb]
    assert found is None
    after = [("/unit",), ("active",)] if verb == "ThawUnit" else []
    assert "busy" in str(talk(steps(), *active * calls._BUSY_TRIES, *after)[1])


def test_a_list_is_replaced() -> None:
    pairs = (("/dev/sda", 5),)
    disks = Property("IOReadBandwidthMax", "IOReadBandwidthMax", "a(st)", pairs, "/dev/sda 5")
    asked = next(calls.set_properties(UNIT, (WEIGHT, disks)))
    assert isinstance(asked, Call)
    assert properties(asked) == [("CPUWeight", 7), (disks.name, ()), (disks.name, pairs)]
    _, error = talk(calls.set_properties(UNIT, (disks,)), OLD)
    assert isinstance(error, RefusedError)


@pytest.mark.parametrize(("is_its", "has_ended"), [(True, True), (False, False), (False, True)])
def test_a_process_elsewhere_or_dead_is_in_no_scope(is_its: bool, has_ended: bool) -> None:  # A2
    with pytest.raises(BackendError, match="was killed" if has_ended else "is in /else"):
        calls.check_place(UNIT, "/else", is_its=is_its, has_ended=has_ended)
    calls.check_place(UNIT, "/its", is_its=True, has_ended=False)


@pytest.mark.parametrize("name", [GONE.name, BUSY.name, OLD.name, f"{ERROR}NoReply", f"{ERROR}UnknownObject"])
def test_an_error_of_pystemds_has_the_name_on_the_bus(name: str) -> None:
    found = pystemd_bus._bus_error(DBusError(-1, name.encode(), b"said"))
    assert (found.name, found.message) == (name, "said")


def test_processes_are_moved_until_none_is_left_also_of_those_that_come_and_go() -> None:  # U10
    looks = [[7, 8, 9], [10], []]
    gone = BusError(f"{ERROR}InvalidArgs", "Process with ID 9 does not exist.")
    asked, error = talk(calls.take_in(UNIT, lambda: looks.pop(0), "user"), gone, (None,))
    assert (asked, error, looks) == (["AttachProcessesToUnit"] * 2, None, [])
    call = next(calls.take_in(UNIT, lambda: [7], "user"))
    assert isinstance(call, Call)
    assert call.arguments == (("s", UNIT), ("s", ""), ("au", [7]))


@pytest.mark.parametrize(("answer", "said"), [((None,), "started faster"), (FAILED, "it broke")])
def test_nobody_moves_processes_forever(answer: Any, said: str) -> None:  # U10
    _, error = talk(calls.take_in(UNIT, lambda: [7], "user"), *[answer] * calls._ROUNDS)
    assert said in str(error)


def test_only_a_scope_that_adopts_is_delegated() -> None:  # U10, K3: systemd moves processes to no other
    for adopts in ((), (7, 1)):
        call = next(calls.start_scope(replace(SPEC, adopts=adopts), 3, lambda: 4))
        assert isinstance(call, Call)
        assert dict(properties(call)).get("Delegate", False) is bool(adopts)
