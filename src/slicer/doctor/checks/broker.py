"""What to say of the broker and of the administrator's policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.broker import DIRECTORY
from slicer.doctor.facts.broker import BrokerFacts
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Verdict, Who
from slicer.text import counted, visible

_SOCKET = "slicer-broker.socket"
_POLICY = "/etc/slicer/policy.toml"


def broker(facts: BrokerFacts, who: Who) -> Verdict:
    """Whether one ledger holds for all users, and whether it works."""
    shown = (
        ("installed", "yes" if facts.is_installed else "no"),
        ("enabled", "yes" if facts.is_enabled else "no"),
        ("socket", facts.place_problem or ("is there" if facts.has_socket else "is not there")),
        ("answers", _answers(facts)),
        ("policy", facts.policy), ("SLICER_BROKER", visible(facts.variable) or "not set"),
    )  # fmt: skip
    return Verdict("broker", _summary(facts), shown, tuple(_findings(facts, who)))


def _answers(facts: BrokerFacts) -> str:
    if not facts.has_socket or facts.place_problem:
        return "not asked"
    return visible(facts.answer_error) or "yes"


def _summary(facts: BrokerFacts) -> str:
    if not facts.has_socket:
        return "of no use" if facts.absence else "off: each user has a ledger of their own"
    if facts.place_problem or facts.answer_error:
        return "of no use"
    return f"on: one ledger for all users, {counted(facts.leases, 'lease')}, {facts.waiting} waiting"


def _findings(facts: BrokerFacts, who: Who) -> Iterator[Finding]:
    journal = who.root("journalctl -u slicer-broker.service -n 20 --no-pager")
    # Not only started: its file may be gone while systemd has it as listening.
    restart = *who.unmask(facts.masked), who.root(f"systemctl restart {_SOCKET}")
    if facts.place_problem:
        # Not by a restart alone: a directory that is there stays as it is.
        made = who.root(f"install -d -m 0755 -o root -g root {DIRECTORY}")
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
        yield finding("policy-without-broker", f"{_POLICY} is there", mend)
    if facts.variable and facts.has_socket:
        yield finding("broker-bypassed", f"SLICER_BROKER={visible(facts.variable)}", "unset SLICER_BROKER")
