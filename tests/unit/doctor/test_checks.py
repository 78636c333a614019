"""Every finding has facts that bring it about, and facts that do not."""

from __future__ import annotations

import pytest

from slicer.doctor.kinds import KINDS
from slicer.doctor.model import AREAS, SEVERITIES, Who
from tests.unit.doctor.cases import CASES, HEALTHY, Case


def test_every_kind_of_finding_has_a_case() -> None:  # X10
    assert set(CASES) == set(KINDS)


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


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.id)
def test_a_kind_says_why_it_matters_and_what_helps(kind: object) -> None:
    kind = KINDS[kind.id]  # type: ignore[attr-defined]
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
    assert alone.root("systemctl x") == "su -c 'systemctl x'"
