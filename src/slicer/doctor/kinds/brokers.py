"""What can be found of the broker and of the administrator's policy."""

from __future__ import annotations

from slicer.doctor.model import Kind

FOUND = (
    Kind(
        id="broker-broken",
        area="broker",
        severity="problem",
        title="the broker does not answer, or cannot do its work",
        why=(
            "A job that wants GPUs or slots fails with exit code 75, whoever starts it: without the "
            "broker nobody knows what is free. Jobs that run keep their leases."
        ),
        cure="`journalctl -u slicer-broker.service` says why. `slicer doctor` as root checks the policy.",
    ),
    Kind(
        id="broker-place",
        area="broker",
        severity="problem",
        title="the broker's socket is not as systemd made it",
        why="Whoever owns the socket's place can answer in the broker's name. Or not all users can reach it.",
        cure="`systemctl restart slicer-broker.socket` makes it anew.",
    ),
    Kind(
        id="broker-stopped",
        area="broker",
        severity="problem",
        title="the broker is stopped, or was switched off while jobs of it run",
        why=(
            "A job that wants GPUs or slots fails with exit code 75: private ledgers would give out again "
            "what the broker's jobs hold."
        ),
        cure=(
            "`systemctl start slicer-broker.socket`. If it is meant to be off: `systemctl disable` it, and "
            "wait until its jobs have ended."
        ),
    ),
    Kind(
        id="broker-bypassed",
        area="broker",
        severity="note",
        title="SLICER_BROKER is set: your jobs do not go through this machine's broker",
        why="Leases of the private ledger exclude your own jobs only, and do not count for others.",
        cure="`unset SLICER_BROKER`.",
    ),
    Kind(
        id="policy-broken",
        area="broker",
        severity="problem",
        title="the administrator's policy has a mistake",
        why=(
            "The last good policy stays in force until the next boot. After that what wants GPUs or slots is "
            "refused."
        ),
        cure=(
            "Mend /etc/slicer/policy.toml at the line that is named; `slicer policy check` says whether it "
            "is right. It is read again by itself."
        ),
    ),
    Kind(
        id="policy-unknown-name",
        area="broker",
        severity="warning",
        title="the policy names a user or group that nobody has",
        why=(
            "What it says of that name does not act. The broker waits two seconds at most for a name "
            "service (SSSD, say), and reaches none that is asked over the network."
        ),
        cure="Mend the name, or write the number in its place.",
    ),
    Kind(
        id="policy-without-broker",
        area="broker",
        severity="warning",
        title="there is a policy, and no broker that keeps it",
        why="Without the broker each user has a ledger of their own, and no cap or share acts.",
        cure="`slicer install --broker`.",
    ),
)
