"""What a hostile user says in systemd's name."""

from __future__ import annotations

import subprocess

from tests.systemd.helpers.users import User


def job_removed(who: User, connection: str, job: str, unit: str) -> None:
    """Send "the job is done" to a connection of the system bus, also in a form that systemd never uses."""
    forged = (
        "dbus-send", "--system", "--type=signal", f"--dest={connection}", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager.JobRemoved",
    )  # fmt: skip
    right = ("uint32:1", f"objpath:{job}", f"string:{unit}", "string:done")
    for body in (right, right[:2], ("double:0.5", "variant:double:2")):
        subprocess.run([*who.identity, *forged, *body], check=True)
