"""Which jobs are asked for next: the file's order, priorities, one of each kind, and who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.file import jobs_file
from slicer.queue.model import Entry, JobState, Kind, kind_of
from slicer.queue.start.pending import Pending, to_ask


def parsed(*lines: str) -> tuple[Entry, ...]:
    return jobs_file.parse("\n".join(lines) + "\n")


def state_of(entry: Entry, **values: object) -> JobState:
    state = JobState(entry.key, entry.number, entry.command, entry.attributes.name)
    for name, value in values.items():
        setattr(state, name, value)
    return state


def heads(pending: Pending, most: int = 32) -> list[str]:
    return [entry.command for _, entry in pending.heads()[:most]]


def drained(pending: Pending) -> list[str]:
    """The commands in the order in which they start when there is always room for one."""
    found = []
    while first := pending.heads():
        entry = first[0][1]
        pending.take(entry.key)
        found.append(entry.command)
    return found


def test_jobs_start_in_the_files_order() -> None:  # E4
    assert drained(Pending(parsed("a", "[vram=1G] b", "c", "[vram=2G] d"), {})) == ["a", "b", "c", "d"]


def test_a_job_waits_for_its_time_and_for_others() -> None:  # U7
    """Whichever comes last; neither keeps jobs behind it."""
    entries = parsed("[begin=22:00] a", "[name=b] b", "[begin=23:00 after=b] c", "d")
    early = {entries[0].key: "begins at 22:00", entries[2].key: "begins at 23:00"}
    states = {entry.key: state_of(entry) for entry in entries}
    pending = Pending(entries, states, early=early)
    assert [pending.waits_for(entry.key) for entry in entries] == ["begins at 22:00", "", "after b", ""]
    assert pending.can_start == 3  # so a queue stays for a
    assert heads(pending) == ["b"]
    states[entries[1].key].status = "ok"
    pending.take(entries[1].key)
    pending.release([entries[1].key])
    assert pending.waits_for(entries[2].key) == "begins at 23:00"
    assert heads(pending) == ["d"]
    pending.resume(entries[0].key)
    pending.resume(entries[2].key)
    assert drained(pending) == ["a", "c", "d"]


def test_a_time_that_comes_while_a_job_waits_for_others_is_no_start() -> None:  # U7
    entries = parsed("[name=a] a", "[begin=22:00 after=a] b")
    pending = Pending(entries, {}, early={entries[1].key: "begins at 22:00"})
    pending.resume(entries[1].key)
    assert heads(pending) == ["a"]
    assert pending.waits_for(entries[1].key) == "after a"


def test_what_is_held_back_waits_and_keeps_nothing_else_from_starting() -> None:  # U19
    """Nor does it keep a queue from ending."""
    entries = parsed("[name=a] a", "b", "[after=c] d", "[name=c] c", "[begin=22:00] e")
    keys = {entry.command: entry.key for entry in entries}
    states = {entry.key: state_of(entry) for entry in entries}
    held = {keys[name]: "held back, 5 failed in a row" for name in "ade"}
    pending = Pending(entries, states, early={keys["e"]: "begins at 22:00"}, held=held)
    assert (len(pending), pending.can_start, sorted(pending) == sorted(keys.values())) == (5, 2, True)
    assert [entry.command for entry in pending.first(5)] == ["b", "d", "c", "a", "e"]
    assert pending.waits_for(keys["a"]) == "held back, 5 failed in a row"
    assert drained(pending) == ["b", "c"]
    states[keys["c"]].status = "ok"
    pending.release([keys["c"]])
    pending.resume(keys["e"])
    assert (heads(pending), pending.can_start) == ([], 0)
    assert pending.held_back == {keys[name] for name in "ade"}
    pending.take(keys["a"])
    assert keys["a"] not in pending


def test_a_job_that_runs_again_after_a_pause_lets_others_go_first() -> None:  # U8
    pending = Pending(parsed("a", "b"), {})
    first = pending.heads()[0][1]
    pending.take(first.key)
    pending.put(first, "again at 22:00")
    assert (heads(pending), pending.can_start, pending.waits_for(first.key)) == (["b"], 2, "again at 22:00")
    pending.resume(first.key)
    assert (heads(pending), pending.waits_for(first.key)) == (["a"], "")


def test_only_the_first_of_each_kind_is_asked_for() -> None:  # E4
    pending = Pending(parsed("[vram=1G] a", "[vram=1G] b", "[vram=2G] c", "[vram=1G timeout=1h] d"), {})
    assert heads(pending) == ["a", "c"]
    pending.take(next(iter(pending.entries)))
    assert heads(pending) == ["b", "c"]


def test_many_kinds_keep_nothing_that_fits_from_starting() -> None:  # Q19
    lines = [f"[vram={99 - size}G] {size}" for size in range(80)]
    pairs = "[gpus=2 vram=50G] two", "[gpus=2 vram=40G] pair"
    lines[70:70] = [*pairs, "[gpus=0] none", "[slots=cpu gpus=0] slot"]
    pending = Pending(parsed(*lines), {})

    def needs(kind: Kind) -> tuple[int, int | None]:
        return (1 if kind.gpus is None else kind.gpus), kind.vram_mib

    assert [entry.command for _, entry in to_ask(pending.heads(), needs, 3)] == [
        "0", "1", "2", "pair", "none", "slot", "79",
    ]  # fmt: skip
    assert to_ask(pending.heads(), needs, 100) == pending.heads()


def test_jobs_that_want_other_slots_are_of_other_kinds() -> None:  # issue: named slots
    pending = Pending(parsed("[slots=a] a", "[slots=a=1] b", "[slots=b] c", "[slots=a,b] d", "e"), {})
    assert heads(pending) == ["a", "c", "d", "e"]


def test_priority_goes_before_the_files_order() -> None:  # X4
    assert drained(Pending(parsed("a", "[priority=5] b", "[priority=-1] c", "d"), {})) == ["b", "a", "d", "c"]


def test_what_has_ended_runs_or_is_cancelled_is_not_asked_for() -> None:  # E6, E7
    entries = parsed("a", "b", "[cancel] c", "d")
    states = {
        entries[0].key: state_of(entries[0], status="ok"),
        entries[1].key: state_of(entries[1], status="running"),
    }
    assert drained(Pending(entries, states)) == ["d"]


def test_a_raised_declaration_is_another_kind() -> None:  # E9
    entries = parsed("[vram=1G] a", "[vram=1G] b")
    states = {entries[0].key: state_of(entries[0], next_vram_mib=2048)}
    pending = Pending(entries, states)
    assert heads(pending) == ["a", "b"]
    assert kind_of(entries[0], states[entries[0].key]).vram_mib == 2048


# Q10: what its line says by now counts all the same, where it is more
@pytest.mark.parametrize(
    ("line", "raised", "expected"),
    [("[vram=3G] a", 2048, 3072), ("[vram=1G] a", 2048, 2048), ("a", 2048, None), ("a", None, None)],
)
def test_after_a_retry_the_larger_declaration_counts(line: str, raised: int, expected: int | None) -> None:
    entry = parsed(line)[0]
    assert kind_of(entry, state_of(entry, next_vram_mib=raised)).vram_mib == expected


# Q1
def test_a_job_that_is_postponed_is_asked_for_later() -> None:
    pending = Pending(parsed("a", "b"), {})
    first = next(iter(pending.entries))
    pending.postpone(first)
    assert heads(pending) == ["b"]
    assert (len(pending), pending.can_start, first in pending) == (2, 2, True)
    assert [entry.command for entry in pending.first(5)] == ["a", "b"]
    pending.resume(first)
    assert heads(pending) == ["a"]
    pending.postpone(first)
    pending.take(first)
    pending.resume(first)
    assert (heads(pending), len(pending)) == (["b"], 1)


def test_a_job_that_is_put_back_has_its_place_again() -> None:  # E9
    pending = Pending(parsed("a", "b", "c"), {})
    first = pending.heads()[0][1]
    pending.take(first.key)
    assert heads(pending) == ["b"]
    pending.put(first)
    assert drained(pending) == ["a", "b", "c"]


class TestAfter:
    """``after=``: a job waits until all of that name have ended well."""

    entries = parsed("[name=x] one", "[name=x] two", "[after=x name=y] three", "[after=x,y] four")

    def after(self, *statuses: str) -> Pending:
        states = {
            entry.key: state_of(entry, status=status)
            for entry, status in zip(self.entries, statuses, strict=False)
        }
        return Pending(self.entries, states)

    def test_it_waits_for_all_of_the_name(self) -> None:
        assert drained(self.after("ok", "running")) == []
        assert drained(self.after("ok", "pending")) == ["two"]
        assert drained(self.after("ok", "ok")) == ["three"]
        assert drained(self.after("ok", "ok", "ok")) == ["four"]

    def test_who_waits_for_a_failure_never_runs_and_neither_do_those_behind_it(self) -> None:
        pending = self.after("ok", "failed")
        assert drained(pending) == []
        reasons = [pending.never[entry.key] for entry in self.entries[2:]]
        assert reasons[0] == "x, which it follows, failed (exit 0)"
        assert reasons[1] in (reasons[0], "y, which it follows, was skipped")
        assert len(pending) == 2
        assert pending.can_start == 0

    def test_release_lets_it_go_when_the_last_has_ended(self) -> None:
        states = {entry.key: state_of(entry, status="ok") for entry in self.entries[:1]}
        states[self.entries[1].key] = state_of(self.entries[1], status="running")
        pending = Pending(self.entries, states)
        assert pending.waits_for(self.entries[2].key) == "after x"
        states[self.entries[1].key].status = "ok"
        pending.release()
        assert drained(pending) == ["three"]

    def test_a_job_of_an_earlier_run_counts_though_its_line_is_gone(self) -> None:
        entries = jobs_file.parse("[after=old] new\n", known=["old"])
        old = JobState("0123456789ab#0", 1, "gone", "old", status="ok")
        assert drained(Pending(entries, {old.key: old})) == ["new"]
        old.status = "failed"
        assert drained(Pending(entries, {old.key: old})) == []

    def test_a_cancelled_job_is_waited_for_in_vain(self) -> None:
        entries = parsed("[name=x cancel] one", "[after=x] two")
        assert "x, which it follows, is cancelled" in Pending(entries, {}).never[entries[1].key]


lines = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, -1, 0, 1]), st.sampled_from("abcd")
    ).map(lambda job: f"[vram={job[0] or 9}G priority={job[1] or 0}] {job[2]}"),
    max_size=12,
)


@given(lines, st.integers(1, 4))
def test_any_queue_starts_each_job_once_and_in_order(text: list[str], most: int) -> None:  # E4
    entries = parsed(*text)
    pending = Pending(entries, {})
    order = [entry.key for entry in pending.first(len(pending))]
    assert [entry.key for entry in pending.first(most)] == order[:most]
    started = []
    while found := pending.heads()[:most]:
        places = [pending.places[entry.key] for _, entry in found]
        assert places == sorted(places)
        assert len({kind for kind, _ in found}) == len(found)
        started.append(found[0][1].key)
        pending.take(started[-1])
    assert started == order
    assert sorted(order) == sorted(entry.key for entry in entries)


steps = st.lists(st.tuples(st.sampled_from(["take", "put back"]), st.integers(0, 30)), max_size=40)


@given(lines, steps, st.integers(1, 4))
def test_what_is_shown_first_is_what_a_new_look_would_show(  # E4
    text: list[str], steps: list[tuple[str, int]], most: int
) -> None:
    pending = Pending(parsed(*text), {})
    taken: list[str] = []
    for what, number in steps:
        waiting = sorted(pending, key=pending.places.__getitem__)
        assert [entry.key for entry in pending.first(most)] == waiting[:most]
        if what == "take" and waiting:
            taken.append(waiting[number % len(waiting)])
            pending.take(taken[-1])
        elif what == "put back" and taken:
            pending.put(pending.entries[taken.pop(number % len(taken))])
    waiting = sorted(pending, key=pending.places.__getitem__)
    assert [entry.key for entry in pending.first(most)] == waiting[:most]


class _NotWalked(dict[str, Entry]):
    def values(self) -> Any:
        raise AssertionError("all lines are walked")


def test_the_end_of_a_job_that_others_follow_walks_no_other_lines() -> None:  # Q21
    entries = parsed("[name=a] a", "[name=b] b", "[after=a] c", "d")
    states = {entry.key: state_of(entry) for entry in entries}
    pending = Pending(entries, states)
    pending.entries = _NotWalked(pending.entries)
    a, b, c, _ = entries
    states[b.key].status = "ok"
    pending.release([b.key])
    assert pending.waits_for(c.key) == "after a"
    states[a.key].status = "ok"
    pending.release([a.key])
    assert pending.waits_for(c.key) == ""
