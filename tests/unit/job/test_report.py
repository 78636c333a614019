"""What the keeper reports: exit codes as the shell has them, reasons, and the messages over the pipe."""

from __future__ import annotations

import errno
import signal
from typing import TYPE_CHECKING

import pytest

from slicer.job.report import Exit, KeeperReport, exit_of, final_reason, pack, unpack
from slicer.model import Usage

if TYPE_CHECKING:
    from slicer.model import Reason


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, Exit(0, None)),
        (1 << 8, Exit(1, None)),
        (255 << 8, Exit(255, None)),
        (signal.SIGTERM, Exit(143, 15)),
        (signal.SIGKILL, Exit(137, 9)),
        (signal.SIGSEGV | 0x80, Exit(139, 11)),  # with a core dump
    ],
)
# A9
def test_an_exit_code_is_the_shells(status: int, expected: Exit) -> None:
    assert exit_of(KeeperReport(1, "exited", status)) == expected


def test_a_time_limit_has_an_exit_code_of_its_own() -> None:  # A9
    assert exit_of(KeeperReport(1, "timeout", signal.SIGTERM)) == Exit(124, 15)


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOENT, 127), (errno.EACCES, 126), (errno.E2BIG, 126), (errno.ENOEXEC, 126), (errno.EAGAIN, 126)],
)
def test_what_cannot_be_executed_exits_as_in_a_shell(number: int, code: int) -> None:
    assert exit_of(KeeperReport(1, "exited", exec_errno=number)) == Exit(code, None)


# D9
@pytest.mark.parametrize(
    ("decided", "status", "oom_kills", "expected"),
    [
        ("timeout", signal.SIGTERM, 1, "timeout"),  # a worker was killed, long ago
        ("stopped", signal.SIGTERM, 1, "oom-kill"),  # OOMPolicy=stop
        (None, 3 << 8, 1, "oom-kill"),
        (None, signal.SIGKILL, 1, "oom-kill"),
        (None, 0, 1, "exited"),
        ("timeout", 0, 0, "timeout"),
        ("stopped", signal.SIGTERM, None, "stopped"),
        (None, signal.SIGTERM, 0, "signal"),
        (None, 3 << 8, 0, "exited"),
        (None, None, 0, "exited"),
    ],
)
def test_a_reason_is_what_ended_the_job(
    decided: Reason | None, status: int | None, oom_kills: int | None, expected: Reason
) -> None:
    assert final_reason(decided, status, oom_kills) == expected


def test_a_report_is_smaller_than_what_a_pipe_passes_whole() -> None:
    report = KeeperReport(1, "oom-kill", 255 << 8, 0, 1e9 / 3, 2**31)
    usage = Usage(*[1e9 / 3] * 4, *[2**62] * 4, *[1e9 / 3] * 3)  # type: ignore[arg-type]
    data = pack(report, usage)
    assert len(data) < 4096  # PIPE_BUF
    assert unpack(data) == (report, usage)


def test_only_whole_messages_are_heard_and_the_last_one_counts() -> None:
    early = KeeperReport(0, "stopped", wall_s=1.0)
    final = KeeperReport(1, "stopped", 9, wall_s=2.0, leftovers=3)
    first, second = pack(early, Usage()), pack(final, Usage(cpu_s=1.0))
    for length in range(len(first)):
        assert unpack(first[:length]) is None
    for length in range(len(second)):
        assert unpack(first + second[:length]) == (early, Usage())
    assert unpack(first + second) == (final, Usage(cpu_s=1.0))
