"""How long a job should run, by what it says and by earlier runs. Pure.

An estimate decides about places in the queue and who may go in the meantime. It ends no job, and nobody is
told it as the user's word.
"""

from __future__ import annotations

from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import EstimateSource, Lease, Ticket

_RUNS = 9  # of one command that count
_MACHINE_RUNS = 64  # of any command
_COMMANDS = 256  # that are kept, those of the last runs
_ENOUGH = 8  # runs of any command, before they say something about one that was never seen
_KEY_CHARS = 80
_MOST_WORDS = 12  # that are looked at
_WRAPPERS = ("sh", "bash", "env")  # what they run names the job
_SAFETY = 2.0  # a job that overruns costs others more than one that ends early


@record
class Lengths:
    """The seconds of earlier runs that held GPUs, each the last ones, the newest last."""

    machine: tuple[float, ...] = ()
    commands: tuple[tuple[str, tuple[float, ...]], ...] = ()  # by key_of; the newest last

    @property
    def mean_s(self) -> float | None:
        return sum(self.machine) / len(self.machine) if self.machine else None

    def runs_of(self, key: str) -> tuple[float, ...]:
        return next((runs for known, runs in self.commands if known == key), ())

    def with_run(self, key: str, length_s: float) -> Lengths:
        """The same, and one more run."""
        runs = (*self.runs_of(key), length_s)[-_RUNS:]
        others = tuple(each for each in self.commands if each[0] != key)
        return Lengths((*self.machine, length_s)[-_MACHINE_RUNS:], (*others, (key, runs))[-_COMMANDS:])


def key_of(command: str) -> str:
    """The part of a command that names it: its program and its script, as in "python3 train.py".

    ``command`` is a command for display. Runs of one script with other parameters count as the same.
    """
    words = [word.strip("'\"()") for word in command.split(maxsplit=_MOST_WORDS)[:_MOST_WORDS]]
    words = [word for word in words if word and not word.startswith("-") and "=" not in word]
    while len(words) > 1 and words[0].rpartition("/")[2] in _WRAPPERS:
        words = words[1:]
    if not words:
        return ""
    program, *others = (word.rpartition("/")[2] for word in words)
    is_script = "." in program and not program.startswith("python")  # python3.11 is none
    script = "" if is_script else next((word for word in others if _may_be_script(word)), "")
    return f"{program} {script}".strip()[:_KEY_CHARS]


def _may_be_script(word: str) -> bool:
    """Whether it is like train.py or pkg.train, and not like 0.001."""
    return "." in word[1:] and not word[:1].isdigit()


def estimate(
    lengths: Lengths, key: str, said_s: float | None, limit_s: float | None
) -> tuple[float | None, EstimateSource]:
    """The seconds that a job should run, and where they come from. ``limit_s`` ends it.

    Earlier runs of the command go before its limit, and a limit before the runs of other commands. What the
    user says counts first, but not below the median of the command's runs.
    """
    source: EstimateSource = ""
    runs = lengths.runs_of(key)
    median_s = sorted(runs)[len(runs) // 2] if runs else None
    found_s: float | None = None
    if said_s is not None and (median_s is None or said_s >= median_s):
        found_s, source = said_s, "expect"
    elif median_s is not None:
        found_s, source = (median_s if said_s is not None else _SAFETY * median_s), "runs"
    elif limit_s is None and len(lengths.machine) >= _ENOUGH:
        found_s, source = _SAFETY * sorted(lengths.machine)[len(lengths.machine) * 9 // 10], "machine"
    if limit_s is not None and (found_s is None or limit_s < found_s):
        found_s, source = limit_s, "limit"
    return found_s, source


def estimated(ticket: Ticket, lengths: Lengths, limit_s: float | None) -> Ticket:
    """The ticket with the estimate, if it wants GPUs."""
    if not ticket.gpus:
        return ticket
    est_s, source = estimate(lengths, key_of(ticket.command), ticket.expect_s, limit_s)
    return replace(ticket, est_s=None if est_s is None else float(round(est_s)), est_from=source)


def likely_s(entry: Lease | Ticket) -> float | None:
    """How long the job should take: its estimate without the safety that decisions need.

    None: unknown. The lengths of other commands ("machine") help to decide, but tell nobody when it ends.
    """
    if entry.est_s is None or entry.est_from == "machine":
        return entry.expect_s
    is_doubled = entry.est_from == "runs" and entry.expect_s is None
    return entry.est_s / _SAFETY if is_doubled else entry.est_s
