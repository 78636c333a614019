"""GPUs for one user's jobs at a time in the future: what others may use, and who may reserve. (U7)"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.broker.protocol import messages
from slicer.broker.rules.allowance import Allowance
from slicer.broker.rules.policy import NO_POLICY, Caps, SitePolicy
from slicer.broker.rules.reservations import check_times, chosen, live, why
from slicer.broker.server.policy_state import PolicyState
from slicer.broker.server.reservations import FILE, Reservations
from slicer.errors import InfeasibleError, NotAllowedError, StateError, UsageError
from slicer.model import Busy, OutOfService, Reservation, Ticket
from slicer.placement.decision import decide
from slicer.placement.devices import Device
from slicer.placement.settings import Policy
from tests.unit import made_up
from tests.unit.broker.within import acquire, within

ANN, BEN = 1001, 1002
A, B = "GPU-a", "GPU-b"
TWO = tuple(Device(uuid, 8000, 0, {}, 0, ()) for uuid in (A, B))
NOW_AT = 1_700_000_000.0
HOUR_S = 3600.0


def reserved(*gpus: str, uid: int = ANN, begins_in_s: float = 0.0, length_s: float = HOUR_S) -> Reservation:
    from_at = NOW_AT + begins_in_s
    return Reservation("aaaaaaaaaaaa", uid, gpus, from_at, from_at + length_s)


def ticket(job: str, uid: int, *, est_s: float | None = 600.0, **fields: object) -> Ticket:
    return made_up.ticket(job * 12, uid=uid, arrived_s=100.0, est_s=est_s, **{"gpus": 1, **fields})


def granted(
    tickets: list[Ticket], *made: Reservation, policy: SitePolicy = NO_POLICY, now_s: float = 200.0
) -> dict[str, tuple[str, ...]]:
    allowance = Allowance(policy, {}, live(made, NOW_AT), NOW_AT)
    found = decide(tickets, TWO, (), Policy(reserve_after_s=50.0), now_s, allowance).grants
    return {job[0]: gpus for job, gpus in found.items()}


def test_a_reserved_gpu_is_its_users_alone() -> None:
    bens, anns = ticket("b", BEN), ticket("a", ANN)
    assert granted([bens, anns], reserved(A)) == {"b": (B,), "a": (A,)}
    assert granted([bens], reserved(A, B)) == {}
    assert granted([ticket("w", BEN, gpus=2), anns], reserved(A)) == {"a": (A,)}
    assert granted([ticket("n", BEN, gpu_choice=(A,))], reserved(A)) == {}
    assert granted([ticket("v", BEN, vram_mib=1000)], reserved(A)) == {"v": (B,)}
    assert granted([ticket("c", BEN, gpus=0, slots={"cpu": 1}, slot_limits={"cpu": 1})], reserved(A, B)) == {
        "c": ()
    }


def test_before_it_begins_its_gpus_serve_jobs_that_should_end_by_then() -> None:
    later = reserved(A, B, begins_in_s=1000.0)
    assert granted([ticket("s", BEN, est_s=900.0)], later) == {"s": (A,)}
    assert granted([ticket("l", BEN, est_s=1100.0)], later) == {}
    assert granted([ticket("u", BEN, est_s=None)], later) == {}  # counts as half an hour
    assert granted([ticket("u", BEN, est_s=None)], reserved(A, begins_in_s=3000.0)) == {"u": (A,)}
    assert granted([ticket("a", ANN, est_s=1100.0)], later) == {"a": (A,)}
    assert granted([ticket("o", BEN)], reserved(A, B, begins_in_s=-7200.0)) == {"o": (A,)}  # it is over


def test_a_request_that_is_shut_out_keeps_nothing_from_others() -> None:
    """However long it has waited, and with caps, too."""
    policy = SitePolicy(Caps(max_gpus=2), {}, {}, {}, {})
    bens = ticket("b", BEN, gpus=2)
    assert granted([bens, ticket("a", ANN)], reserved(A), policy=policy, now_s=1e6) == {"a": (A,)}
    assert granted([bens, ticket("s", BEN)], reserved(A), policy=policy, now_s=1e6) == {"s": (B,)}


def test_who_waits_is_told_why() -> None:
    balance = Allowance(NO_POLICY, {}, (reserved(A, B),), NOW_AT).balance((), TWO)
    names = {ANN: "ann"}.__getitem__
    shut = ticket("b", BEN)
    assert balance.is_closed_out(shut)
    assert balance.busy(shut, ()) == Busy("gpu", (), 0, (), "")
    assert balance.why(shut, names).startswith("GPUs 0, 1 are reserved for ann until ")
    later = why(ticket("l", BEN, est_s=7200.0), (reserved(A, begins_in_s=60.0),), {A: 0}, names, NOW_AT)
    assert later.startswith("GPU 0 is reserved for ann at ")
    assert why(ticket("a", ANN), (reserved(A),), {}, names, NOW_AT) == ""


# -- making one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_in_s", "until_in_s", "most_s", "says"),
    [
        (0, 0, 1e6, "end after"), (100, 50, 1e6, "end after"), (-200, -100, 1e6, "end after"),
        (0, 400 * 86400, 1e9, "within a year"), (0, 10, None, "only root"), (0, 7200, 3600.0, "at most 1.0"),
    ],
)  # fmt: skip
def test_a_time_that_cannot_be_is_refused(
    from_in_s: float, until_in_s: float, most_s: float | None, says: str
) -> None:
    with pytest.raises((UsageError, NotAllowedError), match=says):
        check_times(NOW_AT + from_in_s, NOW_AT + until_in_s, NOW_AT, most_s, "policy.toml:3")


def test_the_gpus_that_should_be_free_first_are_chosen() -> None:
    times = NOW_AT, NOW_AT + HOUR_S
    busy = made_up.lease("1" * 12, gpus=(A,), since_s=0.0, est_s=5000.0)
    assert chosen(1, (), (A, B), (), (busy,), times, 100.0) == (B,)
    assert chosen(2, (), (A, B), (), (busy,), times, 100.0) == (A, B)
    assert chosen(0, (A,), (A, B), (), (busy,), times, 100.0) == (A,)
    assert chosen(1, (), (A, B), (), (busy,), times, 100.0, (B,)) == (A,)  # B is out of service
    assert chosen(0, (B,), (A, B), (), (), times, 100.0, (B,)) == (B,)
    with pytest.raises(InfeasibleError, match="2 wanted, but 1 of 2 GPUs"):
        chosen(2, (), (A, B), (reserved(A),), (), times, 100.0)
    after = NOW_AT + HOUR_S, NOW_AT + 2 * HOUR_S
    assert chosen(2, (), (A, B), (reserved(A),), (), after, 100.0) == (A, B)


# -- the file ------------------------------------------------------------------------------------------------


def test_reservations_survive_the_broker_and_the_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_AT)
    said: list[str] = []
    first = Reservations(str(tmp_path), said.append)
    made, other = reserved(A), Reservation("b" * 12, BEN, (B,), NOW_AT - 10.0, NOW_AT + 10.0)
    first.add(made)
    first.add(other)
    assert Reservations(str(tmp_path), said.append).now() == (other, made)
    first.remove(made)
    assert Reservations(str(tmp_path), said.append).now() == (other,)
    monkeypatch.setattr("time.time", lambda: NOW_AT + 11.0)
    assert first.now() == ()
    assert said == []
    assert os.stat(tmp_path / FILE).st_mode & 0o777 == 0o600


# U19: older brokers' files have none; what is in both is written together
def test_gpus_out_of_service_survive_the_broker_and_the_reboot(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"version": 1, "reservations": []}')
    said: list[str] = []
    first = Reservations(str(tmp_path), said.append)
    assert first.out_of_service == ()
    out = OutOfService(A, "fell off the bus", NOW_AT)
    first.set_out_of_service([out])
    first.add(reserved(A, begins_in_s=1e9))
    again = Reservations(str(tmp_path), said.append)
    assert (again.out_of_service, len(again.now()), said) == ((out,), 1, [])
    again.remove(*again.now())
    assert Reservations(str(tmp_path), said.append).out_of_service == (out,)
    again.set_out_of_service(())
    assert Reservations(str(tmp_path), said.append).out_of_service == ()
    assert out.words == "by root: fell off the bus; slicer reserve --remove GPU-a puts it back"


# U19: through the broker; who waits is told why, and a broker that starts anew knows it still
@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes GPUs out of service")
def test_a_gpu_that_root_takes_out_gets_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with within(tmp_path, monkeypatch) as inside:
        root, runs = inside.dial(), inside.dial().ask(acquire(gpus=1, gpu_choice=("0",)), more=True)
        assert root.ask(messages.SetService(("7",), True, "hot")) == "Infeasible"
        assert root.ask(messages.SetService(("0",), True, "hot")) == messages.Done()
        inside.stop()
        inside.start()
        [out] = (found := inside.dial().ask(messages.Status())).out_of_service
        assert ((out.gpu,), out.why) == (runs.lease.gpus, "hot")
        assert [each.gpus for each in found.leases] == [runs.lease.gpus]
        waits = inside.dial()
        busy = waits.ask(acquire(gpus=1, gpu_choice=("0",)), more=True).busy
        assert busy.why == f"GPU 0 is out of service ({out.words})"
        assert inside.dial().ask(acquire(gpus=1), more=True).lease.gpus != runs.lease.gpus
        assert inside.dial().ask(messages.SetService((out.gpu,), False)) == messages.Done()
        assert inside.dial().ask(messages.Status()).out_of_service == ()


# U19
def test_only_root_takes_gpus_out_of_service(tmp_path: Path) -> None:
    for is_out in (True, False):
        with pytest.raises(NotAllowedError, match="only root"):
            PolicyState.set_service(None, messages.SetService((A,), is_out, "mine"), ANN, tuple)


@pytest.mark.parametrize(
    "text",
    [
        '{"reservations": [], "out_of_service": [{"gpu": "/etc", "why": "", "since_at": 1.0}]}',
        "", "{", "[]", '{"reservations": 3}', '{"reservations": [{"id": "x"}]}',
        json.dumps({"reservations": [{
            "id": "../../../etc", "uid": 0, "gpus": [], "from_at": 1.0, "until_at": 2.0,
        }]}),
        json.dumps({"reservations": [{
            "id": "a" * 12, "uid": -1, "gpus": ["GPU-a"], "from_at": 1.0, "until_at": 2.0,
        }]}),
    ],
)  # fmt: skip
def test_a_bad_file_is_reported_and_costs_itself_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    said: list[str] = []
    assert Reservations(str(tmp_path), said.append).now() == ()
    assert len(said) == 1
    assert FILE in said[0]


def test_what_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("")
    made = Reservations(str(tmp_path / "lib"), lambda _: None)
    with pytest.raises(StateError):
        made.add(reserved(A))
    assert made.now() == ()


@given(
    st.lists(
        st.builds(
            lambda gpus, uid, begins, length: reserved(*gpus, uid=uid, begins_in_s=begins, length_s=length),
            st.sets(st.sampled_from((A, B)), min_size=1).map(sorted), st.sampled_from((ANN, BEN)),
            st.floats(-5000, 5000), st.floats(1, 5000),
        ),
        max_size=4,
    ),
    st.lists(
        st.builds(
            lambda uid, est_s, gpus: (uid, est_s, gpus), st.sampled_from((ANN, BEN)),
            st.one_of(st.none(), st.floats(1, 9000)), st.integers(1, 2),
        ),
        max_size=5,
    ),
)  # fmt: skip
def test_nobody_gets_a_gpu_in_anothers_time(
    made: list[Reservation], wanted: list[tuple[int, float | None, int]]
) -> None:
    tickets = [
        ticket(f"{number:x}", uid, est_s=est_s, gpus=gpus) for number, (uid, est_s, gpus) in enumerate(wanted)
    ]
    for job, gpus in granted(tickets, *made).items():
        uid, est_s, _ = wanted[int(job, 16)]
        for each in made:
            overlaps = each.from_at < NOW_AT + (est_s or 1800.0) and each.until_at > NOW_AT
            assert not (overlaps and each.uid != uid and set(gpus) & set(each.gpus))
