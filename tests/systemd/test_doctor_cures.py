"""Each of the doctor's cures, pasted into the shell of whom it told: afterwards the thing is not found."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.patience import LONGEST_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

UNITS = "/usr/local/lib/systemd/system"
SHUT = "50-slicer-closed-shop.conf"
# What is found, and by what it is brought about, which root does.
ROOTS = {
    "mask": ("slice-masked", "systemctl mask gpu.slice"),
    "runtime mask": ("slice-masked", "systemctl --runtime mask cpu.slice gpu.slice"),
    "global mask": ("slice-masked", "systemctl --global mask gpu.slice"),
    "stopped broker": ("broker-stopped", "slicer install --broker; systemctl stop slicer-broker.socket"),
    "removed socket": ("broker-stopped", "slicer install --broker; rm /run/slicer-broker/socket"),
    "masked broker": (
        "broker-stopped",
        "slicer install --broker; systemctl stop slicer-broker.socket; "
        "systemctl --runtime mask slicer-broker.socket",
    ),
    "open broker": ("broker-place", "slicer install --broker; chmod 0777 /run/slicer-broker"),
    "policy alone": ("policy-without-broker", "mkdir -p /etc/slicer; echo > /etc/slicer/policy.toml"),
    "half a closed shop": (
        "closed-shop-not-acting",
        f"slicer install --broker; slicer install --closed-shop --yes; mkdir {UNITS}/cron.service.d; "
        f"mv {UNITS}/user.slice.d/{SHUT} {UNITS}/cron.service.d; systemctl daemon-reload",
    ),
    "closed shop": ("closed-shop", "slicer install --broker; slicer install --closed-shop --yes"),
    "nothing installed": ("units-missing", "true"),
    "one slice": ("units-outdated", f"slicer install; rm {UNITS}/cpu.slice"),
}  # fmt: skip
ALICES = {
    "mask of her own": ("slice-masked", "{alice} systemctl --user mask gpu.slice"),
    "runtime mask of her own": ("slice-masked", "{alice} systemctl --user --runtime mask gpu.slice"),
    "stopped manager": ("manager-unreachable", "systemctl stop user@{uid}.service"),
    "history of root's": (
        "history-unusable", "mkdir -p {home}/.local/state/slicer; chown alice {home}/.local/state",
    ),
    "lock variable": ("gpu-lock-claimed", "export GPU_LOCK_HELD=1"),
}  # fmt: skip
# Whose cures are tried by no machine of the tests, and why.
UNTRIED = {
    "tests/systemd/test_queue_boot.py tries it": {"queue-not-resumed"},
    "tests/systemd/test_reserve.py tries it": {"gpu-taken-out"},
    "it takes a GPU, or NVIDIA's driver": {
        "driver-hangs", "driver-unusable", "no-nvidia-ml-py", "no-uvm-node", "node-missing", "node-forbidden",
        "mps-beside-share", "mig-on", "exclusive-compute", "dmem-not-enabled", "gpus-not-fenced",
        "foreign-process", "server-outside", "gpu-out-of-service",
    },
    "it takes another machine, kernel or container": {
        "no-systemd", "no-cgroup2", "io-controller-missing", "io-weight-not-heeded", "oomd-absent",
        "controllers-missing", "not-delegated", "docker-is-outside",
    },
    "it takes a bus or a broker that hangs, which another test has": {"systemd-hangs", "broker-broken"},
    "it holds for one shell, one process or a login": {
        "inotify-exhausted", "logout-kills", "no-linger", "ledger-stuck", "ledger-on-disk",
        "gpu-lock-skipped", "broker-bypassed",
    },
    "it changes what the machine's other tests stand on": {
        "ledger-unusable", "ledger-open", "ledger-emptied", "no-journald", "journal-volatile",
        "journal-closed", "closed-shop-without-broker",
    },
    "tests of wraps mend them": {"wrap-changed", "wrap-broken"},
}  # fmt: skip
HER_OWN = ("systemctl --user", "mv ")
AFTERWARDS = f"""
systemctl unmask gpu.slice cpu.slice
systemctl --runtime unmask gpu.slice cpu.slice slicer-broker.socket
systemctl --global unmask gpu.slice
slicer install --remove --force
rm -rf /etc/slicer {UNITS}/*/{SHUT} /home/alice/.config/systemd /home/alice/.local
systemctl daemon-reload
loginctl enable-linger alice
"""


@pytest.fixture
def clean() -> Iterator[None]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test breaks what is installed: only for test machines")
    systemctl.output("slicer", "install", "--remove")
    yield
    subprocess.run(["sh", "-c", AFTERWARDS], check=False, capture_output=True)


def found(said: str, id: str) -> list[str] | None:
    """The lines that mend it; None where it is not found."""
    return next((each["mend"] for each in json.loads(said)["findings"] if each["id"] == id), None)


def ids(said: str) -> set[str]:
    return {each["id"] for each in json.loads(said)["findings"]}


KNOWN: dict[str, set[str]] = {}  # what is found where nothing was broken, by who looks


def cured(id: str, broken: str, who: str, shell: Callable[[str], str]) -> None:
    """``shell`` runs a script as whom the doctor tells, after what root does first."""
    if who not in KNOWN:
        KNOWN[who] = ids(shell(":\nslicer doctor --json"))
    before = shell(f"{broken}\nslicer doctor --json")
    mends = found(before, id)
    assert mends, "it is not found, or nothing mends it"
    # The next shell has what this one exported, for a variable to be unset.
    export = broken if broken.startswith("export ") else ":"
    shell("\n".join([export, *mends, ":"]))
    look = "\n".join([export, *(each for each in mends if each.startswith("unset ")), "slicer doctor --json"])
    known = (KNOWN[who] | ids(before)) - {id}

    def mended() -> list[set[str]]:
        left = ids(shell(look))
        return [left] if id not in left else []

    (left,) = until(mended, f"{id} is mended by {mends}")
    assert left - known == set(), f"{mends} break something else"


@pytest.mark.parametrize("case", ROOTS)
def test_roots_cure_helps(clean: None, case: str) -> None:  # N10, X10
    def shell(script: str) -> str:
        quiet = script.replace("\nslicer doctor", "\nexec >&3\nslicer doctor")
        line = ["sh", "-c", f"exec 3>&1 >/dev/null 2>&1\n{quiet}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd="/")
        return done.stdout

    cured(*ROOTS[case], "root", shell)


@pytest.mark.parametrize("case", ALICES)
def test_a_users_cure_helps(clean: None, alice: User, case: str) -> None:  # N10, X10
    id, broken = ALICES[case]
    via = shlex.join(alice.via)
    broken = broken.format(alice=via, uid=alice.uid, home=alice.home)

    def shell(script: str) -> str:
        """Line by line; as root what she would have root do (`su - -c`), whose password is not known here."""
        *lines, last = script.split("\n")
        for line in lines:
            words = [*(alice.via if line.startswith(HER_OWN) else ()), "sh", "-c", line]
            subprocess.run(words, capture_output=True, check=False, cwd="/")
        own = [line for line in lines if line.startswith(("unset ", "export "))]
        words = [*alice.via, "sh", "-c", "\n".join([*own, last])]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd="/")
        return done.stdout

    cured(id, broken, "alice", shell)
