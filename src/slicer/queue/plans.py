"""Makes a plan from a line of the jobs file, as ``slicer run`` would."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from slicer.backend import has_systemd
from slicer.config import profiles
from slicer.config.build import unknown_slot
from slicer.config.profiles import Config, Overrides
from slicer.errors import ConfigError, SlicerError, StateError, UsageError
from slicer.job.plan import Invocation, Plan, check_limits, outer_jobs, with_sharing
from slicer.job.program import find_program
from slicer.ledger.ledger import Ledger
from slicer.ledger.nesting import OuterJobs
from slicer.model import Profile
from slicer.placement.lengths import Lengths, estimate, key_of
from slicer.queue.file.doubts import Doubts
from slicer.queue.file.jobs_file import refused
from slicer.queue.file.shell import Shell
from slicer.queue.model import Attributes, Entry, Kind, QueueOptions, kind_of, label
from slicer.record import replace
from slicer.retry import Retry, parse_retry

_T = TypeVar("_T")


def shell_of(said: str | None, config: Config, environ: Mapping[str, str]) -> Shell:
    """The shell of that name; None: the configuration's. Raises UsageError, or ConfigError."""
    name = said if said is not None else config.shell
    try:
        program = os.path.abspath(find_program(name, environ))
    except SlicerError as error:
        kind = ConfigError if said is None else UsageError
        where = config.sources["queue.shell"] if said is None else "--shell"
        raise kind(f"{error.where}: {error.message}", where=where, hint=error.hint) from None
    return Shell(name, program, os.path.basename(os.path.realpath(program)))


def doubts(file: str, shell: Shell, config: Config, profile: str, environ: Mapping[str, str]) -> Doubts:
    """Finds what is doubtful in a jobs file. ``profile``: of lines that name none."""

    def lingers(name: str | None) -> bool:
        try:
            return config.profile(name or profile).linger
        except SlicerError:
            return False

    return Doubts(file, shell, lingers, environ)


class Plans:
    """Makes the plans. ``config`` is read once, and the queue uses it until its end."""

    def __init__(
        self, options: QueueOptions, environ: Mapping[str, str], ledger: Ledger, broker: str = ""
    ) -> None:
        """``broker``: its socket, or "". Raises ConfigError; UsageError inside a job that holds GPUs."""
        self._options = options
        self._environ = dict(environ)
        self._ledger = ledger
        self._directory = ledger.directory.path
        self._host = profiles.host()
        self.config: Config = profiles.load(environ, self._host)
        around = outer_jobs(environ, ledger, in_scopes=has_systemd())
        if around.gpus or around.slots or around.foreign_gpu:
            raise UsageError(
                "a queue cannot run inside a job that holds GPUs or slots",
                hint="start it outside: its jobs request what they need themselves",
            )
        self._path = os.path.abspath(options.jobs_file)
        self.broker = broker
        self._profiles: dict[tuple[Kind, float | None], Profile] = {}  # by kind and timeout
        policy = self.config.policy
        self.policy = replace(
            policy,
            idle_threshold_mib=_or(options.idle_threshold_mib, policy.idle_threshold_mib),
            spike_buffer=_or(options.spike_buffer, policy.spike_buffer),
        )
        self.margin_mib = _or(options.margin_mib, self.config.margin_mib)  # kept free beside declared memory
        self.cpus = len(self._host.cpus)
        self.shell = shell_of(options.shell, self.config, environ)
        self.doubts = doubts(options.jobs_file, self.shell, self.config, options.profile, environ)

    def check(self, entries: tuple[Entry, ...]) -> None:
        """Raise JobsFileError for a line with an unknown profile or slot, or that cannot share a GPU."""
        names, given = set(self.config.names()), self._options.engine
        for entry in entries:
            kind = entry.attributes.kind
            if kind.engine not in (None, given) and given != "auto":
                hint = "start it with --engine auto, or leave engine= out"
                raise refused(entry, f"this queue's engine is {given}", hint, "engine")
            for slot, _ in kind.slots:
                if slot not in self.config.slots:
                    raise refused(entry, *unknown_slot(slot, self.config.slots))
            if kind.profile is not None and kind.profile not in names:
                hint = f"known: {', '.join(sorted(names))}"
                raise refused(entry, f"unknown profile {kind.profile!r:.60}", hint)
            if kind.share is not None:
                self._check_share(entry)

    def _check_share(self, entry: Entry) -> None:
        try:
            self._profile(kind_of(entry, None), entry.attributes.timeout_s)
        except UsageError as error:
            if error.where == "--share":
                raise refused(entry, f"share {error.message}", "add vram=") from None

    def plan(self, entry: Entry, kind: Kind, no: int) -> Plan:
        """The plan of job number ``no``. Raises SlicerError if its attributes do not fit its profile."""
        said = entry.attributes
        profile = self._profile(kind, said.timeout_s)
        if said.env:
            profile = replace(profile, env={**profile.env, **dict(said.env)})
        invocation = Invocation(
            command=(self.shell.command, "-c", entry.command), profile=profile.name, overrides=Overrides(),
            name=said.name or label(self._path, no), backend=self._options.backend, queue=self._path,
            expect_s=said.expect_s,
        )  # fmt: skip
        profile = replace(profile, max_wait_s=None)  # the queue waits as long as it takes
        plan = Plan(
            invocation=invocation, config=replace(self.config, policy=self.policy), profile=profile,
            host=self._host, program=self.shell.program, outer=OuterJobs((), False), missing=profile,
            nested=False, skip_gpu_lock=False, environ=self._environ, broker=self.broker,
        )  # fmt: skip
        check_limits(plan)
        return with_sharing(plan, self._directory)

    def octaves(self) -> Callable[[Entry], int | None]:
        """A function for :attr:`Kind.octave`, by what is known of earlier runs now."""
        try:
            lengths = self._ledger.lengths()
        except StateError:
            lengths = Lengths()  # the ledger cannot be read: a request will say so
        known: dict[object, int | None] = {}

        def octave(entry: Entry) -> int | None:
            said = entry.attributes
            if not self.gpu_needs(said.kind)[0]:
                return None
            limit_s = said.timeout_s or self._profile(said.kind, None).timeout_s
            asked = key_of(entry.command), said.expect_s, limit_s
            if asked not in known:
                est_s, _ = estimate(lengths, *asked)
                known[asked] = None if est_s is None else int(math.log2(max(est_s, 1.0)))
            return known[asked]

        return octave

    def gpu_needs(self, kind: Kind) -> tuple[int, int | None]:
        """The number of GPUs for the kind (0: it fits no profile), and the MiB of each (None: all)."""
        try:
            profile = self._profile(kind, None)
        except (UsageError, ConfigError):
            return 0, None
        return profile.gpus, profile.vram_mib

    def retry_of(self, entry: Entry | None) -> Retry:
        """How often the line's job runs again: as it says itself, or the queue, or its profile."""
        said = entry.attributes if entry is not None else Attributes()
        if found := said.retry or self._options.retry:
            return found
        try:
            profile = self._profile(said.kind, said.timeout_s)
        except (UsageError, ConfigError):  # the line was changed meanwhile
            return Retry()
        return parse_retry(profile.retry) if profile.retry else Retry()

    def _profile(self, kind: Kind, timeout_s: float | None) -> Profile:
        known = self._profiles.get((kind, timeout_s))
        if known is None:
            overrides = Overrides(
                gpus=kind.gpus,
                vram=None if kind.vram_mib is None else f"{kind.vram_mib}M",
                margin=None if kind.vram_mib is None else f"{self.margin_mib}M",
                priority=kind.priority,
                slots=tuple(f"{name}={count}" for name, count in kind.slots),
                timeout=None if timeout_s is None else f"{timeout_s}s",
                share=kind.share,
                preemptible=kind.preemptible,
            )
            known = self.config.profile(kind.profile or self._options.profile, overrides)
            self._profiles[kind, timeout_s] = known
        return known


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
