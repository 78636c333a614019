"""A night of two users: queue and broker are killed, a GPU is reserved, the machine boots. As in process."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User
from tests.systemd.test_queue_boot import boot
from tests.systemd.test_queue_detach import Service, of

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

PROFILE = '[profiles.night]\ninherits = "gpu"\npreemptible = true\nmin_run = "0s"\ngrace = "3s"\n'
# The second attempt ends by itself.
TRAIN = """\
echo train >>ran
[ "$(grep -c ^train ran)" -lt 2 ] || exit 0
trap : TERM
while :; do sleep 0.1; done
"""
# Its first attempt fails because its GPU falls ill.
SICK = """\
echo sick >>ran
[ "$(grep -c ^sick ran)" -lt 2 ] || exit 0
gpu=0
case $CUDA_VISIBLE_DEVICES in GPU-1*) gpu=1 ;; esac
echo "recovery $gpu 1" >>"$FAKE_NVML_STATE"
exit 3
"""
LINES = (
    *(f"python3 sweeep.py --lr=0.{number}" for number in range(8)),
    "[name=good] echo good >>ran",
    "[name=sick] exec sh sick.sh",
    "[name=wide gpus=2] echo wide >>ran",
    "[name=train profile=night] exec sh train.sh",
)


@pytest.fixture
def public(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    yield from leaving_nothing(public_slicer, broker)


# U8, U7, U16, L1
def test_in_the_morning_every_good_line_has_run(
    public: Slicer, broker: Broker, nvml: FakeNvml, alice: User, bob: User
) -> None:
    broker.environment(**nvml.env)
    broker.configure(f"[slots]\ncpu = 1\n{PROFILE}")
    nvml.state.chmod(0o666)
    for name, script in (("train.sh", TRAIN), ("sick.sh", SICK)):
        public.path(name).write_text(script)
    hers = Queues(public, alice.via)
    hers.write(*LINES)
    service = Service(hers.run("--detach", env=nvml.env), hers.log_dir, of(alice))
    try:
        _night(public, broker, nvml, alice, bob, service)
    finally:
        systemctl.output(*alice.systemctl, "stop", service.unit, check=False)
    ran = Counter(public.path("ran").read_text().split())
    assert ran == {"good": 1, "wide": 1, "sick": 2, "train": 2}


def _night(
    public: Slicer, broker: Broker, nvml: FakeNvml, alice: User, bob: User, service: Service
) -> None:
    def told(kind: str, name: str) -> list[dict[str, object]]:
        return [each for each in service.events(kind) if (each["job"] or {}).get("name") == name]

    service.has_told("held-back")
    until(lambda: told("retry", "sick"), "its GPU failed")
    (sick,) = (line for line in nvml.state.read_text().splitlines() if line.startswith("recovery"))
    until(lambda: told("started", "train"), "the other GPU has a job that gives way")

    # Somebody needs that GPU. All that could help is killed in the grace; and from now on it is reserved.
    evaluates = ("--gpus", "1", "--name", "eval", "--", "echo", "evaluated")
    eval_ = public.start(*evaluates, env=nvml.env, via=bob.via)
    until(lambda: any(broker.lease(each).get("GIVES_WAY_TO") for each in broker.leases()), "train gives way")
    well = "1" if sick.split()[1] == "0" else "0"
    made = public.command("reserve", "--gpu", well, "--for", "1h", "--for-user", bob.name, "--json").stdout
    os.kill(service.pid, signal.SIGKILL)
    broker.kill()
    assert (eval_.end().code, eval_.stdout) == (0, "evaluated\n")
    service.has_told("opened", times=2)
    boot(alice)
    service.has_told("opened", times=3)
    until(lambda: f"reserved for {bob.name}" in public.command("status", via=alice.via).stdout, "train waits")
    assert len(told("started", "train")) == 1

    public.command("reserve", "--remove", json.loads(made)["reservations"][0]["id"])
    until(lambda: told("finished", "train"), "it runs again")
    assert not told("started", "wide")
    nvml.remove(sick)  # somebody has reset it
    until(service.is_gone, "the queue has ended")
    report = public.path("report.html")
    public.command("report", "--since", "yesterday", "--output", str(report), via=alice.via)
    for words in ("train", "wide", "1 gave way to others", "its GPU failed", "exit 2"):
        assert words in report.read_text(), words
