"""The administrator's policy at work: slots, caps, shares and their explanations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from slicer.broker.protocol.messages import (
    Acquire,
    GroupStanding,
    PastLeases,
    Recent,
    Reserve,
    SetService,
    Usage,
    UsageRow,
    Used,
    UserStanding,
)
from slicer.broker.rules import allowance, policy, shares, standing
from slicer.broker.rules import reservations as reserving
from slicer.broker.rules.allowance import Allowance
from slicer.broker.rules.allowed import LONGEST_STOP_S
from slicer.broker.rules.policy import NO_POLICY, SitePolicy
from slicer.broker.rules.shares import Shares
from slicer.broker.server.accounts import Accounts, EndedLease
from slicer.broker.server.leases import Holding
from slicer.broker.server.names import Names
from slicer.broker.server.policy_file import Configuration, PolicyFile
from slicer.broker.server.requests import Caller
from slicer.broker.server.reservations import Reservations
from slicer.errors import NotAllowedError, SlicerError, TooManyError
from slicer.gpu.idle import idle_limits
from slicer.kernel import proc
from slicer.ledger.leasing import gpus_named
from slicer.model import PREEMPTIBLE, Gpu, Lease, OutOfService, Reservation, Ticket
from slicer.placement.devices import Device
from slicer.placement.settings import Policy
from slicer.record import replace
from slicer.state.directory import Directory
from slicer.text import counted

_ASKS_S = 0.5  # how often a user may request its usage
_NO_GROUP = 65534  # nogroup: for users with unknown groups


class PolicyState:
    """The policy in force, the order that follows from it, and the accounts."""

    def __init__(
        self, directory: str, accounts: str, kept: Directory, warn: Callable[[str], None]
    ) -> None:
        """``directory``: the administrator's files. ``accounts``: the directory of the accounts and the
        reservations. ``kept``: as in :class:`PolicyFile`.
        """
        self.boot_id = proc.boot_id()
        self.names = Names()
        self.configuration = Configuration(warn)
        self.trouble: SlicerError | None = None  # there never was a good policy: then nothing is granted
        self._directory = directory
        self._kept = kept
        self._warn = warn
        self._file: PolicyFile | None = None
        self._load()
        self.accounts = Accounts(lambda: self.policy.half_life_s, directory=accounts, warn=warn)
        self.reservations = Reservations(accounts, warn)
        self._gids: dict[int, tuple[int, ...]] = {}  # of all users that hold or wait
        self._asked: dict[int, float] = {}  # when each user asked for its usage last; monotonic

    @property
    def policy(self) -> SitePolicy:
        return NO_POLICY if self._file is None else self._file.policy

    def refresh(self) -> bool:
        """Check for changed files; returns whether the policy or the configuration is another."""
        if self.trouble is not None or self._file is None:
            return self._load()
        changed = [self._file.refresh(), self.configuration.refresh()]
        if any(changed):
            self._gids = {uid: self.names.gids_of(uid, gids) for uid, gids in self._gids.items()}
        return any(changed)

    def _load(self) -> bool:
        """Read both for the first time; returns whether they are good."""
        before, self.trouble = self.trouble, None
        try:
            self.configuration.load(self._directory)
            path = f"{self._directory}/policy.toml"
            self._file = PolicyFile(path, kept=self._kept, warn=self._warn, names=self.names)
        except SlicerError as error:
            self.trouble = error
            if before is None or str(before) != str(error):
                self._warn(f"no leases are granted: {error}")
        return self.trouble is None

    def is_user(self, uid: int) -> bool | None:
        """Whether the policy, as it is now, calls a subordinate uid a user; None: it does not say."""
        self.refresh()
        return policy.is_user(self.policy, uid)

    # -- one request -------------------------------------------------------------------------------------

    def groups(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user, from now on; ``said`` comes from the kernel.

        A process may leave groups that limit it, so those of /etc/group count as well.
        """
        found = self._gids.get(uid)
        if found is None or not set(said) <= set(found):
            found = self._gids[uid] = self.names.gids_of(uid, said)
        return found

    def priority(self, asked: Acquire, caller: Caller) -> int:
        """How far this request goes ahead of others' requests.

        Unless the policy says otherwise, or this is root, no farther than the administrator's profile.
        """
        if not caller.uid or policy.word_of(self.policy, caller.uid, caller.gids, "max_priority"):
            return asked.priority
        found = self.configuration.profile(asked.profile)
        return min(asked.priority, max(0, found.priority) if found is not None else 0)

    def first_end_s(self, holdings: Iterable[Holding]) -> float | None:
        """When the policy ends the first of these leases (CLOCK_BOOTTIME); None: never."""
        ends_s = []
        for lease, gids in ((each.lease, each.claim.gids) for each in holdings):
            most_s = self.max_hold_s(lease.uid, gids)
            if most_s is not None and (lease.gpus or lease.slots):
                ends_s.append(lease.since_s + most_s)
        return min(ends_s, default=None)

    def max_hold_s(self, uid: int, gids: Sequence[int]) -> float | None:
        """How long a user may hold GPUs or slots at a time; None: for ever."""
        rule = policy.rule_of(self.policy, uid, self.groups(uid, gids), "max_hold_s")
        return None if rule is None else rule.value

    def idle_limits(self, uid: int, gids: Sequence[int]) -> tuple[float | None, float | None]:
        """The idle times after which a user's job is warned, and ended; None: never."""
        return idle_limits(policy.caps_of(self.policy, uid, gids).idle_timeout_s, self.policy.on_idle)

    def way_of(self, ticket: Ticket, asked: Acquire) -> dict[str, float]:
        """What a lease says of giving way; it does if its ticket did, whatever is asked by now."""
        if ticket.priority != PREEMPTIBLE:
            return {}
        return {
            "min_run_s": min(asked.min_run_s or 0.0, self.policy.max_min_run_s),
            "stop_s": min(asked.stop_s or 0.0, LONGEST_STOP_S),
        }

    def check(self, ticket: Ticket, gids: Sequence[int], devices: tuple[Device, ...] | None) -> None:
        """Raises NotAllowedError for a request that its user may never have."""
        allowance.check(self.policy, gids, ticket, devices, self.names.name_of(ticket.uid))

    def too_many_waiting(self, caller: Caller, waiting: int) -> str:
        """Why the user may not add another request to the queue; "" if it may."""
        name = self.names.name_of(caller.uid)
        return allowance.too_many_waiting(self.policy, caller.uid, caller.gids, waiting, name)

    # -- all of them -------------------------------------------------------------------------------------

    def allowance(self) -> Allowance:
        return Allowance(self.policy, self._gids, self.reservations.now(), time.time())

    def next_end_s(self) -> float | None:
        """Seconds until a reservation ends, and its GPUs are open to all; None: there are none."""
        ends_at = min((each.until_at for each in self.reservations.now()), default=None)
        return None if ends_at is None else max(0.0, ends_at - time.time())

    def shares(self, holdings: Iterable[Holding], tickets: Iterable[Ticket], now_s: float) -> Shares:
        """Each user's usage, and the share that is due to it."""
        waiting = (ticket.uid for ticket in tickets if ticket.gpus)
        held = [(each.lease, each.rate) for each in holdings]
        return shares.shares_of(self.policy, self._gids, self.accounts.past(), held, waiting, now_s)

    @property
    def placement(self) -> Policy:
        """The settings of decisions, and the mean length of this machine's jobs."""
        runs = self.accounts.runs
        suspects = runs.suspects(proc.now_s())
        found = replace(self.configuration.placement, mean_job_s=runs.mean_s, suspects=suspects)
        return found.without(self.reservations.out_of_service)

    def standings(
        self, waiting: Sequence[Ticket], found: Shares, holdings: Collection[Holding]
    ) -> tuple[tuple[UserStanding, ...], tuple[GroupStanding, ...]]:
        """The standing of all users that hold or wait, and the groups with common limits."""
        known_mib = {each.lease.job: each.claim.vram_mib for each in holdings}
        held = allowance.taken((each.lease for each in holdings), None, known_mib, self.policy)
        users = standing.standings(self.policy, self._gids, found, held, waiting)
        return users, standing.groups(self.policy, self._gids, held)

    # -- what will be ------------------------------------------------------------------------------------

    def reserved(
        self, asked: Reserve, caller: Caller, gpus: Sequence[Gpu], leases: Iterable[Lease],
        devices: Iterable[Device],
    ) -> Reservation:  # fmt: skip
        """Make a reservation. Raises UsageError, NotAllowedError, TooManyError, StateError."""
        now_at, uid = time.time(), caller.uid
        rule = policy.word_of(self.policy, uid, caller.gids, "max_reserve_s")
        most_s = reserving.MOST_AHEAD_S if not uid else None if rule is None else rule.value
        where = rule.where if rule is not None else "policy.toml"
        reserving.check_times(asked.from_at, asked.until_at, now_at, most_s, where)
        if uid not in (0, asked.uid):
            raise NotAllowedError("only root may reserve GPUs for others")
        known = self.reservations.now()
        own = sum(each.uid == uid for each in known)
        if len(known) >= reserving.MOST or (uid and own >= reserving.MOST_EACH):
            raise TooManyError(f"there are {len(known)} reservations, {own} of them yours")
        named = gpus_named(asked.gpu_choice, tuple(gpus))
        count = len(named) or asked.gpus
        cap = policy.rule_of(self.policy, uid, caller.gids, "max_gpus")
        if cap is not None and count > cap.value:
            says = f"{self.names.name_of(uid)} may hold {counted(int(cap.value), 'GPU')} at a time"
            raise NotAllowedError(says, where=cap.where)
        found = reserving.chosen(
            count, named, [gpu.uuid for gpu in gpus], known, leases, (asked.from_at, asked.until_at),
            proc.now_s(), [each.uuid for each in devices if each.out],
        )  # fmt: skip
        made = Reservation(os.urandom(6).hex(), asked.uid, found, asked.from_at, asked.until_at)
        self.reservations.add(made)
        return made

    def set_service(self, asked: SetService, uid: int, gpus: Callable[[], tuple[Gpu, ...]]) -> None:
        """Take GPUs out of service, or put them back.

        Raises UsageError, NotAllowedError, GpuError, StateError.
        """
        if uid:
            raise NotAllowedError("only root may take GPUs out of service, or put them back")
        named = gpus_named(asked.gpu_choice, gpus(), "--out-of-service") if asked.is_out else asked.gpu_choice
        taken = [OutOfService(uuid, asked.why, time.time()) for uuid in named if asked.is_out]
        others = (each for each in self.reservations.out_of_service if each.gpu not in named)
        self.reservations.set_out_of_service((*others, *taken))

    # -- the use so far -----------------------------------------------------------------------------------

    def measure(
        self, gpus: tuple[str, ...], vram_mib: int | None, devices: tuple[Device, ...] | None
    ) -> tuple[float, int]:
        """A lease's weight in the accounts: its number of GPUs, and its MiB of their memory."""
        sizes = allowance.sizes_of(devices)
        return shares.gpu_rate(gpus, vram_mib, sizes), allowance.held_vram(gpus, vram_mib, sizes)

    def seen(self, holdings: Iterable[Holding], devices: Iterable[Device]) -> None:
        """Note the use of jobs that share a GPU: it counts if it exceeds their declaration."""
        used = [each.used_by for each in devices]
        for holding in holdings:
            lease = holding.lease
            if lease.gpus and lease.vram_mib is not None:
                peak_mib = max((each.get(lease.job, 0) for each in used), default=0)
                rate = shares.used_rate(holding.claim.rate, lease.vram_mib, peak_mib, len(lease.gpus))
                holding.rate = max(rate, holding.rate)

    def ended(self, holding: Holding) -> None:
        """Count a lease that has ended, and add it with the next write of the accounts."""
        lease, claim = holding.lease, holding.claim
        peak_mib = max(holding.told.vram_peak_mib, default=0) if holding.told is not None else 0
        told_rate = shares.used_rate(claim.rate, lease.vram_mib, peak_mib, len(lease.gpus))
        self.accounts.note(
            EndedLease(
                lease=lease, gid=self._account_of(holding), ended_s=proc.now_s(), waited_s=claim.waited_s,
                rate=max(told_rate, holding.rate), vram_mib=claim.vram_mib,
                finished=holding.told, usage=holding.usage,
            )
        )

    def usage(self, asked: Usage, uid: int, holdings: Iterable[Holding]) -> Used:
        """The usage of a user's jobs (root: all), running ones included. Raises TooManyError, StateError."""
        self._slow_down(uid)
        ended = self.accounts.usage(asked.since, uid or None, asked.by)
        running = [self._used_so_far(each, asked) for each in holdings if uid in (0, each.lease.uid)]
        return Used(shares.added_up([*ended, *running]))

    def _used_so_far(self, holding: Holding, asked: Usage) -> UsageRow:
        lease, claim = holding.lease, holding.claim
        of = {"user": lease.uid, "group": self._account_of(holding), "profile": lease.profile}[asked.by]
        lasts_s = max(0.0, proc.now_s() - lease.since_s)
        most_s = lasts_s if asked.since is None else max(0.0, time.time() - asked.since)
        return shares.so_far(str(of), lasts_s, most_s, claim.rate, claim.vram_mib, claim.waited_s)

    def recent(self, asked: Recent, uid: int) -> PastLeases:
        """Who held GPUs since then. Raises TooManyError, StateError."""
        self._slow_down(uid)
        self.accounts.write()
        return PastLeases(self.accounts.recent(asked.since))

    def _slow_down(self, uid: int) -> None:
        """Refuse a user's next request for accounts within a second: each costs milliseconds."""
        now_s = time.monotonic()
        if uid and now_s - self._asked.get(uid, -_ASKS_S) < _ASKS_S:
            raise TooManyError("too many requests for usage", hint="try again in a second")
        self._asked = {each: at_s for each, at_s in self._asked.items() if now_s - at_s < _ASKS_S}
        self._asked[uid] = now_s

    def _account_of(self, holding: Holding) -> int:
        gids = self._gids.get(holding.lease.uid) or holding.claim.gids
        return policy.account_of(self.policy, gids) if gids else _NO_GROUP
