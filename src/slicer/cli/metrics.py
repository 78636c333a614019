"""``slicer metrics``: figures for Prometheus."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from importlib.util import find_spec

import click

from slicer.broker import accounts
from slicer.broker.client.standing import read
from slicer.cli import say
from slicer.cli.common import NoLibrary, failing
from slicer.errors import StateError
from slicer.kernel import on_host
from slicer.outcome import history
from slicer.outcome.totals import Total, of_history
from slicer.state.directory import Directory

FILE = "slicer.prom"


@click.command(
    "metrics",
    epilog="""\
\b
Examples:
  slicer metrics                      print them
  slicer metrics --textfile /var/lib/prometheus/node-exporter
                                      for node_exporter's textfile collector
  sudo slicer install --metrics       that, twice a minute

\b
Root sees the jobs of all users, if there is a broker. No label names a job.
Sums over ended jobs only grow, although the history forgets old jobs.
`slicer web` has the same figures at /metrics. docs/metrics.md lists them.""",
)
@click.option("--textfile", "folder", metavar="DIR", help=f"Write DIR/{FILE} instead, in one step.")
@click.option("--openmetrics", "is_open", is_flag=True, help="Print OpenMetrics, not Prometheus' own format.")
def command(folder: str | None, is_open: bool) -> None:
    """Print jobs, waiters, leases and GPU memory as they are, and sums over the jobs that have ended."""
    if folder is not None and is_open:
        raise click.UsageError("--openmetrics cannot be combined with --textfile")
    need_prometheus()
    from slicer.web.metrics import text

    data, _ = text(read(os.environ, say.line), totals(), is_open=is_open)
    if folder is not None:
        replace_file(folder, data)
        return
    sys.stdout.buffer.write(data)


def need_prometheus() -> None:
    """Raise NoLibrary without the library that writes metrics."""
    if find_spec("prometheus_client") is None:
        raise NoLibrary("prometheus-client", "metrics need prometheus_client")


def totals() -> list[Total]:
    """The sums over ended jobs: for root of all users if there is a broker. Warns if they are unknown."""
    path = on_host(accounts.PATH)
    try:
        if os.geteuid() == 0 and os.path.lexists(path):
            return accounts.all_totals(path)
        return of_history(history.default_path())
    except StateError as error:
        say.line(f"without the sums over ended jobs: {error}")
        return []


def replace_file(folder: str, data: bytes) -> None:
    """Put the file into a directory, in one step. The directory may belong to another user.

    A link of the file's name is replaced, not followed. Raises SlicerError.
    """
    hint = "create it, or name the directory that node_exporter reads"
    with failing("the metrics cannot be written", folder, hint=hint):
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with closing(Directory(fd, folder)) as directory:
            directory.replace_shared(FILE, data, 0o600, lambda fd: os.fchmod(fd, 0o644))
