"""What to say of the device fence and of a closed shop. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.broker import BrokerFacts
from slicer.doctor.facts.fence import FenceFacts
from slicer.doctor.facts.gpus import DeviceFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Who


def fence(
    facts: FenceFacts, devices: DeviceFacts, systemd: SystemdFacts, broker: BrokerFacts | None, who: Who
) -> Iterator[Finding]:
    """The findings about it. ``broker``: None where nobody could look."""
    has_broker = broker is None or (broker.has_socket and broker.variable != "off")
    if devices.driver and systemd.boots:
        if who.manager == "system" and not systemd.filters_devices:
            look = "journalctl -b | grep -i bpf"
            mend = "# have the host allow bpf(2) in here" if systemd.container else look
            yield finding("gpus-not-fenced", "systemd may load no BPF programs here", mend)
        elif who.manager == "user" and not has_broker:
            mend = who.install("--broker", "broker.enable = true")
            yield finding("gpus-not-fenced", "your manager cannot do it, and there is no broker", mend)
    if not facts.closed_shop and not facts.left_open:
        return
    undo = who.install("--closed-shop --undo", "broker.closedShop = false")
    if facts.left_open:
        mend = who.install("--closed-shop --yes", "broker.closedShop = true")
        what = f"{', '.join(facts.left_open)} can still open the GPUs"
        yield finding("closed-shop-not-acting", what, mend, undo)
    elif facts.acts is False:
        mends = who.root("systemctl daemon-reload"), who.root("systemd-run --wait --collect true")
        yield finding("closed-shop-not-acting", facts.closed_shop, *mends)
    elif not has_broker:
        mend = who.install("--broker", "broker.enable = true")
        yield finding("closed-shop-without-broker", facts.closed_shop, mend, undo)
    else:
        yield finding("closed-shop", facts.closed_shop, undo)


def described(facts: FenceFacts, systemd: SystemdFacts) -> tuple[tuple[str, str], ...]:
    """What there is to see of it."""
    keeps = "can be kept" if systemd.filters_devices else "cannot be kept"
    rows = [("device fence", keeps if systemd.boots else "takes systemd")]
    if facts.closed_shop:
        acts = {True: "acts", False: "does not act", None: "not to be seen now"}[facts.acts]
        rows.append(("closed shop", f"{facts.closed_shop} ({acts})"))
    return tuple(rows)
