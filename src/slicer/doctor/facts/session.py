"""Whether a user's manager, and so the user's jobs, outlive the session."""

from __future__ import annotations

import os

from slicer.doctor.facts.files import setting
from slicer.kernel.users import user_name
from slicer.record import record


@record
class SessionFacts:
    """Of the user whose slicer this is."""

    lingers: bool
    has_runtime: bool  # /run/user/UID: logged in, or lingering
    kills_processes: bool  # logind ends what a session leaves behind (KillUserProcesses) of this user


def gather(uid: int) -> SessionFacts:
    """Reads logind's files."""
    user = user_name(uid)
    kills = setting("logind.conf", "KillUserProcesses").lower() in ("yes", "true", "1", "on")
    only = setting("logind.conf", "KillOnlyUsers").split()
    spared = setting("logind.conf", "KillExcludeUsers").split() or ["root"]
    return SessionFacts(
        lingers=os.path.exists(f"/var/lib/systemd/linger/{user}"),
        has_runtime=os.path.isdir(f"/run/user/{uid}"),
        kills_processes=kills and user not in spared and (not only or user in only),
    )
