"""Whether a program can be wrapped or unwrapped, and the steps for it. Pure."""

from __future__ import annotations

import shlex
import stat
from typing import Literal

from slicer.record import record, replace
from slicer.wrap import judging, shim
from slicer.wrap.judging import Sight
from slicer.wrap.terms import (
    STORES,
    SUFFIX,
    Ancestor,
    FileState,
    Site,
    Step,
    Tool,
    Wrap,
    WrapError,
    WrapPlan,
    WrapRefused,
)

Keep = Literal["new", "real"]
_ALTERNATIVES = "/etc/alternatives/"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAME_MAX = 255
_AT_BIN = ("unwrapped", "replaced", "unclear", "unfinished")  # the situations in which BIN is a program


@record
class WrapRequest:
    """The user's request. ``probes``: the files that the route runs to measure an input."""

    route: str
    uid: int
    now_s: float
    force: bool
    probes: tuple[str, ...]


def install(
    request: WrapRequest, site: Site, tool: Tool, known: Wrap | None, sight: Sight | None
) -> WrapPlan:
    """The plan to wrap a program, without steps if it is already wrapped. Safe to repeat.

    ``known``: its record, if there is one, and ``sight``: its state. A wrap that a kill or an upgrade broke
    is repaired. Raises WrapRefused, WrapError.
    """
    if known is not None and known.intent != "install":
        hint = f"finish that first: {judging.lines(known)[1]}"
        raise WrapRefused("is only half unwrapped", where=site.path, hint=hint)
    _check(request, site, tool)
    check_way(site.way, request.uid, site.path)
    if known is None or sight is None:
        return _first(request, site, tool)
    return _again(request, site, tool, known, sight)


def _first(request: WrapRequest, site: Site, tool: Tool) -> WrapPlan:
    if site.bin.kind == "shim":
        return _adopted(request, site, tool)
    if site.bin.kind == "absent":
        hint = f"if {site.real_path} is the program, rename it back first"
        raise WrapRefused("the file does not exist", where=site.path, hint=hint)
    if site.real.kind != "absent":
        hint = f"move it away, if nothing needs it: mv {shlex.quote(site.real_path)} …"
        raise WrapRefused("already exists; the program needs this name", where=site.real_path, hint=hint)
    _check_program(site)
    wrap = _wrap(request, site, tool, site.bin)
    steps: tuple[Step, ...] = ("record", "link", "divert", "place") if wrap.diverted else (
        "record", "link", "place"
    )  # fmt: skip
    return WrapPlan(wrap, steps, _notes(wrap, site, tool))


def _adopted(request: WrapRequest, site: Site, tool: Tool) -> WrapPlan:
    """Trust a shim without a record only if it equals, byte for byte, the one that slicer would write now."""
    wrap = _wrap(request, site, tool, site.real)
    if not site.real.is_program or site.bin.head != shim.text(wrap):
        hint = f"if its program is there: {shim.way_back(wrap)}"
        raise WrapRefused("is already a shim, but there is no record of it", where=site.path, hint=hint)
    return WrapPlan(wrap, ("record",))


def _again(request: WrapRequest, site: Site, tool: Tool, known: Wrap, sight: Sight) -> WrapPlan:
    away = judging.lines(known)[1]
    found = judging.situation(known, sight)
    if found == "gone":
        raise WrapRefused("the file does not exist", where=site.path, hint=f"to remove the record: {away}")
    if known.route != request.route:
        hint = f"unwrap it first: {away}"
        raise WrapRefused(f"is wrapped by the route {known.route!r}", where=site.path, hint=hint)
    if found == "program-gone":
        message = f"its program {known.real} is missing"
        raise WrapRefused(message, where=site.path, hint=f"reinstall the program, or {away}")
    if found in _AT_BIN:
        _check_program(site)
    program = site.bin if found in _AT_BIN else site.real
    current = replace(_wrap(request, site, tool, program), since_s=known.since_s)
    if found == "unclear":
        if not request.force or not site.bin.is_program or site.real.kind == "directory":
            (problem,) = (each for each in judging.problems(known, sight) if each.id == "unclear")
            raise WrapRefused(problem.message, hint=f"--force takes {known.path} as the program")
        return WrapPlan(current, judging.diverting(current, sight, ("exchange", "record", "place")))
    if found == "whole" and current.slicer != known.slicer:
        return WrapPlan(current, judging.diverting(current, sight, ("record", "place")))
    steps = judging.mending(replace(known, diverted=current.diverted), sight)
    return WrapPlan(current, steps, _notes(current, site, tool) if steps else ())


def mend(known: Wrap, sight: Sight, slicer: str) -> WrapPlan:
    """The plan to repair a recorded wrap, with this slicer if the recorded one is gone."""
    steps = judging.mending(known, sight)
    wrap = known if sight.slicer_runs else replace(known, slicer=slicer)
    found = judging.situation(known, sight)
    if found != "leaving":
        program = sight.bin if found in _AT_BIN else sight.real
        wrap = replace(wrap, ino=program.ino, size=program.size, mtime_ns=program.mtime_ns)
    return WrapPlan(wrap, steps)


def remove(known: Wrap, sight: Sight, keep: Keep | None) -> WrapPlan:
    """The plan to unwrap a program. If two programs could stay, ``keep`` chooses one.

    Raises WrapRefused.
    """
    if known.intent != "install" and keep is None:
        steps = judging.leaving(known, sight)
        if steps:
            return WrapPlan(known, steps)
    bin, real = sight.bin, sight.real
    if bin.is_program and real.is_program and not judging.is_same(bin, real):
        if keep is None:
            message = f"is no longer a shim, and {known.real} is another program"
            hint = "--keep new keeps this one and removes the other, --keep real puts the other back"
            raise WrapRefused(message, where=known.path, hint=hint)
    elif keep == "new" and not bin.is_program:
        raise WrapRefused("is still the shim", where=known.path, hint="leave out --keep")
    elif bin.kind in ("directory", "other") or real.kind in ("directory", "shim", "other"):
        shown = known.path if bin.kind in ("directory", "other") else known.real
        raise WrapRefused("is no longer a program", where=shown, hint="move it away")
    wrap = replace(known, intent="drop" if keep == "new" else "restore")
    if real.is_program:
        wrap = replace(wrap, ino=real.ino, size=real.size, mtime_ns=real.mtime_ns)
    steps = judging.leaving(wrap, sight)
    if keep == "real" and "forget" not in steps:
        steps = ("restore", *(("undivert", "forget") if wrap.diverted else ("forget",)))
    notes = () if real.is_program or bin.is_program else (f"the program {known.real} was already missing",)
    # To remove the record, no new record is needed.
    return WrapPlan(wrap, steps if steps == ("forget",) else ("record", *steps), notes)


def _check(request: WrapRequest, site: Site, tool: Tool) -> None:
    """Refuse what cannot be wrapped, with the most helpful reason. Raises WrapRefused, WrapError."""
    path = site.path
    if (what := dict(tool.names).get(path)) is not None:
        hint = "otherwise each call of slicer would call slicer"
        raise WrapRefused(f"is {what}, and cannot be wrapped", where=path, hint=hint)
    if path in request.probes:
        hint = "otherwise the route would call itself to measure its input"
        raise WrapRefused(f"is a probe of the route {request.route!r}", where=path, hint=hint)
    if site.shimmed:
        raise WrapRefused("is the program behind a shim", where=path, hint=f"wrap {site.shimmed} itself")
    if site.end.kind == "shim" and site.bin.kind == "link":
        hint = "calls through this link already go through its route"
        raise WrapRefused(f"leads to {site.end_path}, which is wrapped", where=path, hint=hint)
    _check_kind(site)
    _check_place(request, site)
    if not tool.is_executable:
        hint = "choose another one with --slicer"
        raise WrapRefused("the shim would call it, but it cannot be executed", where=tool.path, hint=hint)
    if not request.uid and (unsafe := _unsafe(tool.way, 0)):
        message = f"the shim would call it, but {unsafe[0]}"
        hint = "root's shims may only call what only root can change: choose such a slicer with --slicer"
        raise WrapRefused(message, where=tool.path, hint=hint)


def _check_kind(site: Site) -> None:
    path, end = site.path, site.end
    if site.bin.kind == "absent" and site.real.kind == "absent":
        raise WrapRefused("the file does not exist", where=path)
    if len(path.rpartition("/")[2].encode("utf-8", "surrogateescape")) + len(SUFFIX) > _NAME_MAX:
        raise WrapRefused(f"its name is too long to add {SUFFIX!r}", where=path)
    if site.bin.kind in ("directory", "other"):
        what = "a directory" if site.bin.kind == "directory" else "not a file: a device, a FIFO or a socket"
        raise WrapRefused(f"is {what}", where=path)
    if site.bin.kind == "link" and end.kind != "file" and end.kind != "shim":
        what = "leads nowhere" if end.kind == "absent" else f"leads to {site.end_path}, which is not a file"
        raise WrapRefused(what, where=path)


def _check_program(site: Site) -> None:
    """Refuse a program that must keep its own name or rights, or that belongs to another tool."""
    path, end = site.path, site.end
    if not end.mode & 0o111:
        raise WrapRefused("nobody may execute it", where=path, hint=f"chmod +x {shlex.quote(path)}")
    if end.mode & (stat.S_ISUID | stat.S_ISGID):
        kind = "setuid" if end.mode & stat.S_ISUID else "setgid"
        hint = "with the caller's rights, slicer could neither end nor limit it"
        raise WrapRefused(f"is {kind}: it runs with other rights than its caller", where=path, hint=hint)
    if end.has_capabilities:
        hint = "with the caller's rights, slicer could neither end nor limit it; see getcap"
        message = "has file capabilities: it runs with other rights than its caller"
        raise WrapRefused(message, where=path, hint=hint)
    if end.has_acl:
        hint = "remove it with setfacl -b, and wrap again"
        message = "has an access control list, which the shim would not have"
        raise WrapRefused(message, where=path, hint=hint)
    if site.bin.kind == "link" and site.end_path != path and site.bin.head.startswith(_ALTERNATIVES.encode()):
        hint = f"wrap its target: {site.end_path}"
        message = "belongs to update-alternatives, which would replace the shim"
        raise WrapRefused(message, where=path, hint=hint)
    theirs = [each for each in site.diversions if each.by or each.to != f"{each.path}{SUFFIX}"]
    if theirs:
        by = theirs[0].by or "the administrator"
        message = f"is already diverted to {theirs[0].to} by {by}"
        raise WrapRefused(message, where=path, hint="see dpkg-divert --list")


def _check_place(request: WrapRequest, site: Site) -> None:
    folder = site.path.rpartition("/")[0] or "/"
    for store in STORES:
        if site.path.startswith(store):
            hint = "wrap it in the package that installs it, or a link in a directory of your own"
            message = f"is in {store[:-1]}, which no program may change"
            raise WrapRefused(message, where=site.path, hint=hint)
    if site.way and site.way[-1].mode & stat.S_ISVTX and site.bin.uid not in (0, request.uid):
        raise WrapRefused(f"belongs to uid {site.bin.uid}, who could replace the shim", where=site.path)
    if site.is_read_only:
        raise WrapError("its file system is read-only", where=site.path)
    if not site.is_writable:
        hint = "run it as root" if request.uid else f"is it immutable? lsattr -d {shlex.quote(folder)}"
        raise WrapError(f"you may not write to {folder}", where=site.path, hint=hint)


def check_way(way: tuple[Ancestor, ...], uid: int, path: str) -> None:
    """Refuse a program that others could replace behind slicer's back. Raises WrapRefused."""
    if unsafe := _unsafe(way, uid):
        raise WrapRefused(unsafe[0], where=path, hint=unsafe[1])


def _unsafe(way: tuple[Ancestor, ...], uid: int) -> tuple[str, str] | None:
    """Who else could replace the file at the end of the path, and the remedy; None if nobody."""
    for each in way:
        if each.uid not in (0, uid, way[0].uid):  # in a user namespace, "/" may belong to an unknown user
            message = f"{each.path} belongs to uid {each.uid}, who could replace files in it"
            return message, f"wrap it as that user: sudo -u '#{each.uid}' slicer wrap install …"
        if not each.mode & _OTHERS_WRITE or each.mode & stat.S_ISVTX:
            continue
        if each.mode & stat.S_IWOTH or not (each.is_private or each.gid == 0):
            who = "everybody" if each.mode & stat.S_IWOTH else f"its group (gid {each.gid})"
            return f"{each.path} is writable by {who}", f"chmod go-w {shlex.quote(each.path)}"
    return None


def _wrap(request: WrapRequest, site: Site, tool: Tool, program: FileState) -> Wrap:
    return Wrap(
        path=site.path, real=site.real_path, route=request.route, slicer=tool.path, intent="install",
        ino=program.ino, size=program.size, mtime_ns=program.mtime_ns, package=site.owner.package,
        diverted=site.owner.name, since_s=request.now_s,
    )  # fmt: skip


def shim_mode(program: int) -> int:
    """The mode of a program's shim: anybody who may execute the program may read and execute the shim."""
    executable = program & 0o011
    return 0o700 | executable | executable << 2


def _notes(wrap: Wrap, site: Site, tool: Tool) -> tuple[str, ...]:
    notes = []
    if site.end.head.startswith(b"#!"):
        name = wrap.real.rpartition("/")[2]
        notes.append(f"it is a script, which sees itself as {name} ($0, sys.argv[0])")
    if wrap.diverted:
        notes.append(f"dpkg puts later versions of {wrap.package} at {wrap.real} (a diversion)")
    if not tool.is_for_all and site.end.mode & 0o001 and site.way and site.way[-1].mode & 0o001:
        notes.append(f"only you can execute {tool.path}: other users' calls fail with exit code 127")
    return tuple(notes)
