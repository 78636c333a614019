"""Every finding has facts that bring it about, and facts that do not."""

from __future__ import annotations

import re

import pytest

from slicer.doctor.findings import AREAS, SEVERITIES, Who
from slicer.doctor.kinds import kinds
from tests.machines.host import REPO
from tests.systemd.test_doctor_cures import ALICES, ROOTS, UNTRIED
from tests.unit.doctor.cases import CASES, HEALTHY, NO_UNITS, Case, on_fence, on_units
from tests.unit.doctor.made_up import ON_NIXOS

AS_ROOT = re.compile(r"\b(?:sudo|su - -c|su -c|pkexec|run0)\b.*")
LOOKS = re.compile(
    r"#|(sudo |sudo sh -c .|su - -c .)?"
    r"(ls|ps|journalctl|which|df|du|dmesg|editor|cat|slicer (profiles|status|wrap check|history))\b"
)
UNPUBLISHED = re.compile(
    r"pipx? install .*slicer-(systemd|client)|pypi.org/project/slicer|reinstall slicer-systemd"
)
HOME = re.compile(r"""(?<![\w.])(?:~/|/home/|\$\{?HOME|\$\(|\.local/bin)""")


def test_every_kind_of_finding_has_a_case() -> None:  # X10
    assert set(CASES) == set(kinds())


@pytest.mark.parametrize(("id", "case"), [(id, case) for id, cases in CASES.items() for case in cases])
def test_a_case_is_found(id: str, case: Case) -> None:  # X10
    verdict = case()
    assert id in {found.kind.id for found in verdict.findings}, verdict


@pytest.mark.parametrize("case", HEALTHY)
def test_where_all_is_well_nothing_is_found(case: Case) -> None:  # X10
    assert case().findings == ()


@pytest.mark.parametrize("case", [case for cases in CASES.values() for case in cases])
def test_what_is_found_is_one_line_and_what_mends_it_can_be_pasted(case: Case) -> None:
    for found in case().findings:
        assert found.what
        for line in (found.what, *found.mend):
            assert line.isprintable(), found
            assert line == line.strip(), found


def test_on_nixos_no_cure_is_a_command_that_is_refused_there() -> None:  # N4, K5
    """slicer changes nothing there but by the system's configuration."""
    assert ON_NIXOS.install("--broker", "broker.enable = true") == (
        "# in the configuration: programs.slicer.broker.enable = true"
    )
    shut = on_fence(who=ON_NIXOS, closed_shop="/etc/systemd/system/user.slice.d/overrides.conf", broker=False)
    verdicts = (shut(), on_fence(who=ON_NIXOS, broker=False)(), on_units(who=ON_NIXOS, system=NO_UNITS)())
    mends = [line for verdict in verdicts for each in verdict.findings for line in each.mend]
    assert len(mends) >= 4
    assert [line for line in mends if not line.startswith("# in the configuration: programs.slicer.")] == []


def test_each_cure_that_is_a_command_is_tried_or_it_is_said_why_not() -> None:  # N10
    tried = {id for id, _ in (*ROOTS.values(), *ALICES.values())}
    untried = [id for ids in UNTRIED.values() for id in ids]
    found = [each for cases in CASES.values() for case in cases for each in case().findings]
    commands = {each.kind.id for each in found if any(map(changes_something, each.mend))}
    assert commands - tried - set(untried) == set()
    assert set(untried) <= set(kinds())
    assert not tried & set(untried)


def changes_something(line: str) -> bool:
    """Whether this line of a cure does more than to show where to look."""
    return bool(line) and not LOOKS.match(line)


def all_that_is_told() -> list[str]:
    """The lines of the doctor's cures, of the pages, and of the modules, which have the messages."""
    found = [each for cases in CASES.values() for case in cases for each in case().findings]
    cures = [line for each in found for line in each.mend]
    cures += [line for kind in kinds().values() for line in (*kind.cure.split("`"), kind.why)]
    for place in ("README.md", "docs/**/*.md", "man/*", "src/slicer/**/*.py"):
        cures += [line for page in REPO.glob(place) for line in page.read_text().splitlines()]
    return cures


def test_root_is_never_told_to_run_what_a_user_can_write() -> None:  # W24, M4
    """No command for root names a path below a home, neither of the doctor's nor in a message or a page."""
    cures = all_that_is_told()
    assert sum(map(bool, map(AS_ROOT.search, cures))) > 100
    assert [line for line in cures if (run := AS_ROOT.search(line)) and HOME.search(run[0])] == []


def test_nothing_is_installed_by_a_name_that_nobody_has_published() -> None:  # N11, M4
    assert [line for line in all_that_is_told() if UNPUBLISHED.search(line)] == []


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.id)
def test_a_kind_says_why_it_matters_and_what_helps(kind: object) -> None:
    kind = kinds()[kind.id]  # type: ignore[attr-defined]
    assert kind.area in AREAS
    assert kind.severity in SEVERITIES
    assert kind.why.endswith(".")
    assert kind.cure.endswith((".", "…"))
    assert kind.id.replace("-", "").isalnum()
    assert kind.id == kind.id.lower()


def test_commands_for_root_are_written_as_the_user_can_run_them() -> None:
    alice, alone = Who(1000, "alice", "user", True), Who(1000, "alice", "user", False)
    assert Who(0, "root", "system", True).root("echo a > b") == "echo a > b"
    assert alice.root("systemctl x") == "sudo systemctl x"
    assert alice.root("echo 'a' > b") == "sudo sh -c 'echo '\\''a'\\'' > b'"
    assert alone.root("systemctl x") == "su - -c 'systemctl x'"  # W24: not in her own PATH
    # N10: each mask goes by the place that it lies in.
    masks = (
        "/etc/systemd/system/gpu.slice", "/etc/systemd/system/cpu.slice", "/run/systemd/system/gpu.slice",
        "/etc/systemd/user/gpu.slice", "/home/alice/.config/systemd/user/gpu.slice",
        "/run/user/1000/systemd/user/cpu.slice",
    )  # fmt: skip
    assert alice.unmask(masks) == (
        "sudo systemctl unmask gpu.slice cpu.slice", "sudo systemctl --runtime unmask gpu.slice",
        "sudo systemctl --global unmask gpu.slice", "systemctl --user unmask gpu.slice",
        "systemctl --user --runtime unmask cpu.slice",
    )  # fmt: skip
    # W28: polkit lets users do this one themselves.
    assert alice.linger() == "loginctl enable-linger alice || sudo loginctl enable-linger alice"
    assert Who(0, "root", "system", True).linger() == "loginctl enable-linger root"
