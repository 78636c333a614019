"""Findings about the ledger, the history, the broker, and the way slicer is called. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.broker import BrokerFacts
from slicer.doctor.facts.configuration import EnvironmentFacts, OthersFacts
from slicer.doctor.facts.state import PathFacts, StateFacts
from slicer.doctor.findings import AreaVerdict, Finding, Who
from slicer.doctor.kinds import finding
from slicer.quantity import format_size
from slicer.state import BROKER_DIRECTORY
from slicer.text import quote, visible

_IN_MEMORY = ("tmpfs", "ramfs", "")
_LEDGER_NEEDS_BYTES = 1 << 20
_LEDGER_NEEDS_FILES = 64
_HISTORY_NEEDS_BYTES = 16 << 20
_OTHERS_WRITE = 0o022
_FOR_ALL = 0o1002  # sticky, and writable by all


def state(facts: StateFacts, who: Who) -> AreaVerdict:
    """The directories of the ledger and the history."""
    shown = (
        ("ledger", _described(facts.ledger)),
        *((f"{place.path} for users' ledgers", _described(place)) for place in facts.public),
        ("history", _described(facts.history)),
    )  # fmt: skip
    found = (*_ledger(facts, who), *_room(facts), *_history(facts, who))
    summary = f"ledger in {facts.ledger.path}, history in {facts.history_directory.path}"
    return AreaVerdict("state", summary, shown, tuple(found))


def _described(place: PathFacts) -> str:
    if not place.kind:
        return f"{place.path}: does not exist yet"
    free = "" if place.free_bytes < 0 else f", {format_size(place.free_bytes)} free"
    on = place.file_system or "unknown"
    return f"{place.path}: {place.kind} of uid {place.uid}, {place.mode:04o}, {on}{free}"


def _ledger(facts: StateFacts, who: Who) -> Iterator[Finding]:
    place = facts.ledger
    if facts.error:
        yield finding("ledger-unusable", facts.error, *_place_mends(facts, who))
    elif place.kind not in ("", "directory"):
        what = f"{place.path} is a {place.kind}, not a directory"
        yield finding("ledger-unusable", what, f"ls -ld {quote(place.path)}")
    elif place.kind and place.uid != who.uid:
        what = f"{place.path} belongs to uid {place.uid}, not to you"
        yield finding("ledger-unusable", what, "unset SLICER_STATE_DIR")
    elif place.kind and place.mode & _OTHERS_WRITE:
        mend = f"chmod go-rwx {quote(place.path)}"
        yield finding("ledger-open", f"{place.path} has mode {place.mode:04o}", mend)
    if facts.lock_holder:
        what = f"pid {facts.lock_holder} is stopped and holds {place.path}/lock"
        yield finding("ledger-stuck", what, f"kill -CONT {facts.lock_holder}")
    if facts.is_emptied and not who.is_brokered:
        what = f"{place.path} is deleted at {who.user}'s last logout, even with leases of running jobs in it"
        yield finding("ledger-emptied", what, who.install("", "enable = true"), who.linger())
    if facts.squatted:
        what = f"{facts.squatted} belongs to another user; your ledger is {place.path}"
        yield finding("ledger-name-taken", what, f"ls -ld {quote(facts.squatted)}")


def _place_mends(facts: StateFacts, who: Who) -> tuple[str, ...]:
    if facts.is_chosen:
        return ("unset SLICER_STATE_DIR",)
    if who.uid and not any(
        each.kind == "directory" and each.mode & _FOR_ALL == _FOR_ALL for each in facts.public
    ):
        return (who.install("", "enable = true"),)
    return (f"# {facts.hint}",)


def _room(facts: StateFacts) -> Iterator[Finding]:
    place = facts.ledger
    what = ""
    if 0 <= place.free_bytes < _LEDGER_NEEDS_BYTES:
        what = f"the file system of {place.path} has {format_size(place.free_bytes)} free"
    elif 0 <= place.free_files < _LEDGER_NEEDS_FILES:
        what = f"the file system of {place.path} has room for {place.free_files} more files"
    if what:
        yield finding("ledger-full", what, f"du -x -d1 {quote(place.path.rpartition('/')[0])}")
    if place.file_system not in _IN_MEMORY:
        what = f"{place.path} is on {place.file_system}"
        mend = "unset SLICER_STATE_DIR" if facts.is_chosen else "# mount a tmpfs there"
        yield finding("ledger-on-disk", what, mend)


def _history(facts: StateFacts, who: Who) -> Iterator[Finding]:
    place, directory = facts.history, facts.history_directory
    problem = _why_unusable(place, directory, who)
    if facts.history_shut:
        problem = f"{directory.path} cannot be created in {facts.history_shut}"
    if problem:
        mend = f"ls -ld {quote(directory.path)} {quote(place.path)}"
        if directory.kind == "directory" and directory.uid != who.uid:  # e.g. root's, after `sudo -E`
            mend = f"mv {quote(directory.path)} {quote(f'{directory.path}.of-{directory.uid}')}"
        if facts.history_shut:
            mend = f"ls -ld {quote(facts.history_shut)}"
        yield finding("history-unusable", problem, mend)
    if 0 <= place.free_bytes < _HISTORY_NEEDS_BYTES or 0 <= place.free_files < 4:
        what = f"the file system of {place.path} has {format_size(max(0, place.free_bytes))} free"
        path = place.path if place.kind else directory.path
        there = path if place.kind or directory.kind else path.split("/slicer")[0]
        yield finding("history-unusable", what, f"df -h {quote(there)}")


def _why_unusable(place: PathFacts, directory: PathFacts, who: Who) -> str:
    others = 0o002 if who.uid else _OTHERS_WRITE
    if directory.kind == "directory" and directory.mode & others:
        return f"others may write to {directory.path} ({directory.mode:04o})"
    if directory.kind == "directory" and directory.uid != who.uid:
        return f"{directory.path} belongs to uid {directory.uid}"
    if directory.kind not in ("", "directory", "link"):
        return f"{directory.path} is not a directory"
    if place.kind not in ("", "file"):
        return f"{place.path} is a {place.kind}, not a file"
    if place.kind and place.uid != who.uid:
        return f"{place.path} belongs to uid {place.uid}"
    return ""


_SOCKET = "slicer-broker.socket"
_POLICY = "/etc/slicer/policy.toml"


def broker(facts: BrokerFacts, who: Who) -> AreaVerdict:
    """Whether there is one ledger for all users, and whether it works."""
    shown = (("policy", facts.policy),)
    return AreaVerdict("broker", _broker_summary(facts), shown, tuple(_broker(facts, who)))


def _broker_summary(facts: BrokerFacts) -> str:
    if not facts.has_socket:
        return "not usable" if facts.absence else "off: each user has their own ledger"
    if facts.place_problem or facts.answer_error:
        return "not usable"
    return "on: one ledger for all users"


def _broker(facts: BrokerFacts, who: Who) -> Iterator[Finding]:
    journal = who.root("journalctl -u slicer-broker.service -n 20 --no-pager")
    # A start alone is not enough: systemd may think that it listens although its file is gone.
    restart = *who.unmask(facts.masked), who.root(f"systemctl restart {_SOCKET}")
    if facts.place_problem:
        # A restart alone does not help: systemd leaves an existing directory as it is.
        made = who.root(f"install -d -m 0755 -o root -g root {BROKER_DIRECTORY}")
        yield finding("broker-place", visible(facts.place_problem), made, *restart)
    elif facts.answer_error:
        yield finding("broker-broken", visible(facts.answer_error), journal, *restart)
    if facts.absence:
        enable = *who.unmask(facts.masked), who.configured(
            f"systemctl enable --now {_SOCKET}", "programs.slicer.broker.enable = true"
        )
        yield finding("broker-stopped", visible(facts.absence), *(restart if facts.is_enabled else enable))
    if facts.policy == "broken":
        yield finding("policy-broken", visible(facts.policy_error), who.root(f"editor {_POLICY}"))
    for warning in facts.policy_warnings:
        yield finding("policy-unknown-name", visible(warning), who.root(f"editor {_POLICY}"))
    if facts.policy not in ("none", "broken") and not facts.is_enabled and not facts.has_socket:
        mend = who.install("--broker", "broker.enable = true")
        yield finding("policy-without-broker", f"{_POLICY} exists", mend)
    for each in facts.out_of_service:
        what = f"{each.gpu}: {visible(each.why)}"
        yield finding("gpu-taken-out", what, who.root(f"slicer reserve --remove {each.gpu}"))
    if facts.overlaps:
        mend = f"# give the range's owner another one in /etc/subuid, or set user_uids in {_POLICY}"
        yield finding("subuid-overlap", visible(", ".join(facts.overlaps)), mend)
    if facts.variable and facts.has_socket:
        yield finding("broker-bypassed", f"SLICER_BROKER={visible(facts.variable)}", "unset SLICER_BROKER")


def environment(facts: EnvironmentFacts) -> AreaVerdict:
    """PATH, sudo and variables."""
    program = facts.program or (facts.on_path[0] if facts.on_path else "")
    shown = (
        ("this slicer", facts.program or "python -m slicer"), ("on PATH", ", ".join(facts.on_path) or "none"),
        ("its Python", facts.prefix), *((f"${name}", value) for name, value in facts.variables),
    )  # fmt: skip
    return AreaVerdict("environment", program or "python -m slicer", shown, tuple(_environment(facts)))


def _environment(facts: EnvironmentFacts) -> Iterator[Finding]:
    said = dict(facts.variables)
    skipped = [name for name in ("SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK") if said.get(name, "0") != "0"]
    if skipped:
        yield finding("gpu-lock-skipped", ", ".join(skipped), f"unset {' '.join(skipped)}")
    if "SLICER_LEASE" not in said and said.get("GPU_LOCK_HELD", "0") != "0":
        yield finding("gpu-lock-claimed", f"GPU_LOCK_HELD={said['GPU_LOCK_HELD']}", "unset GPU_LOCK_HELD")
    if len(facts.on_path) > 1:
        yield finding("several-slicers", ", ".join(facts.on_path), "which -a slicer")
    if facts.is_under_sudo:
        yield finding("under-sudo", "sudo started this slicer")


def others(facts: OthersFacts) -> AreaVerdict:
    """Docker, an old podman, and scripts that lock the GPUs."""
    shown = (("GPU lock of scripts", facts.lock or "none"),)
    summary = "docker is installed" if facts.has_docker else "nothing interferes"
    return AreaVerdict("others", summary, shown, tuple(_others(facts)))


def _others(facts: OthersFacts) -> Iterator[Finding]:
    if facts.lock_problem:
        mend = f"ls -ld {quote(facts.lock)} {quote(facts.lock.rpartition('/')[0] or '/')}"
        yield finding("gpu-lock-unusable", f"{facts.lock} {facts.lock_problem}", mend)
    if facts.lock_holder:
        name = f" ({facts.lock_holder_name})" if facts.lock_holder_name else ""
        what = f"pid {facts.lock_holder}{name} holds {facts.lock}"
        yield finding("gpu-lock-held", what, f"ps -fp {facts.lock_holder}")
    if facts.old_podman:
        yield finding("podman-is-outside", f"{facts.old_podman} is older than 4.5", "# a newer podman")
    if facts.has_docker:
        yield finding("docker-is-outside", "docker is installed", "slicer run --gpus 1 --docker -- …")
