"""What cannot be wrapped is refused, with the reason and what to do; nothing is changed. # C5"""

from __future__ import annotations

import re

import pytest

from slicer.errors import SlicerError
from slicer.record import replace
from slicer.wrap import planning, shim
from slicer.wrap.judging import Sight
from slicer.wrap.planning import WrapRequest
from slicer.wrap.terms import (
    ABSENT,
    NOBODY,
    Ancestor,
    Diversion,
    FileState,
    PackageOwner,
    Site,
    Tool,
    Wrap,
    WrapPlan,
)

ALICE = 1000
PROGRAM = FileState("file", 1, 100, 10, 20, uid=0, mode=0o755, head=b"\x7fELF")
REQUEST = WrapRequest("whisper", 0, 5.0, False, ())
BIN = Ancestor("/usr/bin", 0, 0, 0o755, False)
ROOT = Ancestor("/", 0, 0, 0o755, False)
SITE = Site(
    path="/usr/bin/whisper", real_path="/usr/bin/whisper-real", way=(ROOT, BIN), is_writable=True,
    is_read_only=False, bin=PROGRAM, real=ABSENT, end=PROGRAM, end_path="/usr/bin/whisper", shimmed="",
    owner=NOBODY, diversions=(),
)  # fmt: skip
TOOL = Tool(
    "/opt/slicer/bin/slicer", True,
    (("/opt/slicer/bin/slicer", "slicer itself"), ("/usr/bin/python3", "what slicer runs on"),
     ("/bin/sh", "the shell of shims")),
    (ROOT,), True,
)  # fmt: skip
WRAP = Wrap(
    "/usr/bin/whisper", "/usr/bin/whisper-real", "whisper", TOOL.path, "install", 100, 10, 20, "", "", 1.0
)
SHIM = FileState("shim", 1, 103, 700, 23, mode=0o755, head=shim.text(WRAP))
LINK = FileState("link", 1, 104, 9, 24, mode=0o777, head=b"../lib/whisper")
OF_ALTERNATIVES = replace(LINK, head=b"/etc/alternatives/w")


def site(**changes: object) -> Site:
    found = replace(SITE, **changes)
    return found if "end" in changes or found.bin.kind == "link" else replace(found, end=found.bin)


def program(**changes: object) -> Site:
    return site(bin=replace(PROGRAM, **changes))


def install(
    where: Site = SITE, request: WrapRequest = REQUEST, tool: Tool = TOOL, known: Wrap | None = None,
    sight: Sight | None = None,
) -> WrapPlan:  # fmt: skip
    if known is not None and sight is None:
        sight = Sight(where.bin, where.real, True, True, where.diversions)
    return planning.install(request, where, tool, known, sight)


def below(*more: Ancestor) -> Site:
    return site(way=(ROOT, *more))


AS_ALICE = replace(REQUEST, uid=ALICE)
HOME = Ancestor("/home/alice/bin", ALICE, ALICE, 0o755, False)
TMP = Ancestor("/tmp", 0, 0, 0o1777, False)
LEFT = replace(WRAP, intent="restore")

REFUSED = {
    "nothing there": (lambda: install(site(bin=ABSENT)), "the file does not exist"),
    "only REAL there": (lambda: install(site(bin=ABSENT, real=PROGRAM)), "whisper-real is the program"),
    "a directory": (lambda: install(site(bin=FileState("directory"))), "is a directory"),
    "a device": (lambda: install(site(bin=FileState("other"))), "a device, a FIFO or a socket"),
    "a link to nowhere": (lambda: install(site(bin=LINK, end=ABSENT)), "leads nowhere"),
    "a link to a directory": (
        lambda: install(site(bin=LINK, end=FileState("directory"))), "which is not a file",
    ),
    "a link to a shim": (
        lambda: install(site(bin=LINK, end=SHIM, end_path="/usr/lib/w")),
        "leads to /usr/lib/w, which is wrapped",
    ),
    "of update-alternatives": (
        lambda: install(site(bin=OF_ALTERNATIVES, end=PROGRAM, end_path="/usr/bin/w2")),
        "belongs to update-alternatives.*wrap its target: /usr/bin/w2",
    ),
    "not executable": (lambda: install(program(mode=0o644)), r"nobody may execute it .*chmod \+x"),
    "setuid": (lambda: install(program(mode=0o4755)), "is setuid: it runs with other rights"),
    "setgid": (lambda: install(program(mode=0o2755)), "is setgid"),
    "a link to a setuid program": (
        lambda: install(site(bin=LINK, end=replace(PROGRAM, mode=0o4755))), "is setuid",
    ),
    "capabilities": (lambda: install(program(has_capabilities=True)), "has file capabilities"),
    "an access list": (lambda: install(program(has_acl=True)), "has an access control list"),
    "a long name": (lambda: install(site(path=f"/usr/bin/{'x' * 251}")), "too long to add '-real'"),
    "REAL exists": (lambda: install(site(real=PROGRAM)), "whisper-real: already exists"),
    "REAL is a directory": (
        lambda: install(site(real=FileState("directory"))), "whisper-real: already exists",
    ),
    "slicer": (lambda: install(site(path=TOOL.path)), "is slicer itself"),
    "slicer's Python": (lambda: install(site(path="/usr/bin/python3")), "is what slicer runs on"),
    "sh": (lambda: install(site(path="/bin/sh")), "is the shell of shims"),
    "a probe of its route": (
        lambda: install(request=replace(REQUEST, probes=(SITE.path,))), "is a probe of the route 'whisper'",
    ),
    "REAL of another": (
        lambda: install(site(shimmed="/usr/bin/whisper")), "behind a shim .wrap /usr/bin/whisper itself",
    ),
    "an unknown shim": (lambda: install(site(bin=SHIM)), "is already a shim, but there is no record"),
    "a shim of another slicer's": (
        lambda: install(site(bin=replace(SHIM, head=SHIM.head + b"\n"), real=PROGRAM)), "there is no record",
    ),
    "another route": (
        lambda: install(site(bin=SHIM, real=PROGRAM), replace(REQUEST, route="fast"), known=WRAP),
        "is wrapped by the route 'whisper' .*slicer wrap remove /usr/bin/whisper",
    ),
    "a removal under way": (lambda: install(site(real=PROGRAM), known=LEFT), "is only half unwrapped"),
    "its program is gone": (lambda: install(site(bin=SHIM), known=WRAP), "whisper-real is missing"),
    "all is gone": (lambda: install(site(bin=ABSENT), known=WRAP), "the file does not exist"),
    "both were changed": (
        lambda: install(site(bin=replace(PROGRAM, ino=1, size=1), real=replace(PROGRAM, size=2)), known=WRAP),
        "cannot tell which is the program.*--force",
    ),
    "diverted by a package": (
        lambda: install(site(diversions=(Diversion(SITE.path, f"{SITE.path}.distrib", "other"),))),
        "diverted to /usr/bin/whisper.distrib by other",
    ),
    "diverted elsewhere": (
        lambda: install(site(diversions=(Diversion(SITE.path, f"{SITE.path}.orig", ""),))),
        "by the administrator",
    ),
    "the nix store": (lambda: install(site(path="/nix/store/x-y/bin/w")), "is in /nix/store"),
    "guix": (lambda: install(site(path="/gnu/store/x-y/bin/w")), "is in /gnu/store"),
    "read-only": (lambda: install(site(is_read_only=True)), "its file system is read-only"),
    "no rights": (
        lambda: install(site(is_writable=False), AS_ALICE), "you may not write to /usr/bin .*run it as root",
    ),
    "an immutable directory": (lambda: install(site(is_writable=False)), "lsattr -d /usr/bin"),
    "root, in a user's directory": (
        lambda: install(below(HOME)), "belongs to uid 1000.*sudo -u '#1000' slicer wrap install",
    ),
    "in another user's": (lambda: install(below(HOME), replace(REQUEST, uid=1001)), "belongs to uid 1000"),
    "below a user's directory": (
        lambda: install(below(HOME, replace(BIN, path="/home/alice/bin/x"))),
        "/home/alice/bin belongs to uid",
    ),
    "a directory for everybody": (
        lambda: install(below(replace(BIN, mode=0o777))), "writable by everybody .*chmod go-w /usr/bin",
    ),
    "a directory of a group": (
        lambda: install(below(replace(HOME, gid=50, mode=0o775)), AS_ALICE), "writable by its group .gid 50",
    ),
    "another's file in /tmp": (
        lambda: install(site(way=(ROOT, TMP), bin=replace(PROGRAM, uid=1001)), AS_ALICE),
        "belongs to uid 1001",
    ),
    "a slicer that is none": (
        lambda: install(tool=replace(TOOL, is_executable=False)), "cannot be executed .*--slicer",
    ),
    "root, with a user's slicer": (
        lambda: install(tool=replace(TOOL, way=(ROOT, HOME))), "root's shims may only call what only root",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_the_reason(case: str) -> None:  # C5
    attempt, said = REFUSED[case]
    with pytest.raises(SlicerError) as caught:
        attempt()
    assert caught.value.kind in ("wrap-refused", "wrap")
    assert re.search(said, str(caught.value)), str(caught.value)


def test_what_can_be_wrapped_is() -> None:  # C5
    fine = (
        site(),
        site(bin=LINK, end=PROGRAM, end_path="/usr/lib/whisper"),
        site(bin=LINK, end=replace(PROGRAM, uid=1001)),
        below(BIN, replace(BIN, path="/usr/bin/below", gid=0, mode=0o775)),  # root's own group
        site(way=(ROOT, TMP)),
        program(mode=0o711),
        site(path="/usr/bin/python3-config"),
    )
    for each in fine:
        assert install(each).steps == ("record", "link", "place")
    private = replace(HOME, mode=0o775, is_private=True)
    for way in ((ROOT, HOME), (ROOT, private), (ROOT, TMP)):
        assert install(site(way=way, bin=replace(PROGRAM, uid=ALICE)), AS_ALICE).steps
    nobody = replace(ROOT, uid=65534)
    assert install(site(way=(nobody, replace(BIN, uid=65534)))).steps  # in a user namespace
    # A user decides by whose slicer the own programs are called.
    assert install(below(HOME), AS_ALICE, replace(TOOL, way=(ROOT, replace(HOME, mode=0o777)))).steps


def test_a_packages_file_is_diverted_by_the_name_that_the_package_has_for_it() -> None:  # C5
    plan = install(site(owner=PackageOwner("w", "/bin/whisper")))
    assert plan.steps == ("record", "link", "divert", "place")
    assert (plan.wrap.package, plan.wrap.diverted) == ("w", "/bin/whisper")
    assert any("diversion" in note for note in plan.notes)
    ours = (Diversion("/bin/whisper", "/bin/whisper-real", ""),)  # a removal was undone by hand
    assert install(site(owner=PackageOwner("w", "/bin/whisper"), diversions=ours)).steps


def test_what_is_to_be_known_is_said() -> None:  # C5
    notes = install(program(head=b"#!/usr/bin/python3")).notes
    assert len(notes) == 1
    assert "sees itself as whisper-real" in notes[0]
    assert "fail with exit code 127" in install(tool=replace(TOOL, is_for_all=False)).notes[0]
    assert install(program(mode=0o700), tool=replace(TOOL, is_for_all=False)).notes == ()


def test_installing_again_does_only_what_is_left() -> None:  # C5
    assert install(site(bin=SHIM, real=PROGRAM), known=WRAP).steps == ()
    old = replace(SHIM, head=b"#!/bin/sh\n# slicer wrap, form 0\n")
    assert install(site(bin=old, real=PROGRAM, end=old), known=WRAP).steps == ("record", "place")
    assert install(site(bin=PROGRAM, real=PROGRAM), known=WRAP).steps == ("record", "place")
    moved = install(site(bin=SHIM, real=PROGRAM), tool=replace(TOOL, path="/new/slicer"), known=WRAP)
    assert moved.steps == ("record", "place")
    assert (moved.wrap.slicer, moved.wrap.since_s) == ("/new/slicer", WRAP.since_s)
    new = replace(PROGRAM, ino=7, size=77)
    after_upgrade = install(site(bin=new, real=PROGRAM), known=WRAP)
    assert after_upgrade.steps == ("exchange", "record", "place")
    assert (after_upgrade.wrap.size, after_upgrade.wrap.mtime_ns) == (77, 20)
    both = site(bin=new, real=replace(new, ino=8, size=78))
    forced = install(both, replace(REQUEST, force=True), known=WRAP)
    assert forced.steps == ("exchange", "record", "place")


def test_an_upgrade_to_a_setuid_program_is_not_wrapped_anew() -> None:  # C5
    new = replace(PROGRAM, ino=7, size=77, mode=0o4755)
    with pytest.raises(SlicerError, match="is setuid"):
        install(site(bin=new, real=PROGRAM), known=WRAP)


def test_a_shim_whose_record_was_lost_is_recorded_again_if_it_is_just_the_one() -> None:  # C5
    found = install(site(bin=SHIM, real=PROGRAM))
    assert (found.steps, found.wrap.since_s) == (("record",), REQUEST.now_s)


@pytest.mark.parametrize(("mode", "expected"), [
    (0o755, 0o755), (0o700, 0o700), (0o711, 0o755), (0o750, 0o750), (0o555, 0o755), (0o710, 0o750),
    (0o701, 0o705), (0o666 | 0o111, 0o755),
])  # fmt: skip
def test_the_shim_is_for_those_who_may_execute_the_program(mode: int, expected: int) -> None:  # C5
    """A script must be read to be executed; nobody but its owner may write it."""
    assert planning.shim_mode(mode) == expected
