"""A running queue from elsewhere: the list of queues, its board on another terminal, retry, add."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slicer.queue.control import client
from slicer.queue.control.messages import encode
from slicer.queue.state import recent
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, kill, kill_9, unprivileged
from tests.process.queue_box import QueueBox
from tests.process.test_status_watch import other_side
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal

QUEUE = (*SLICER, "queue")


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def call(queues: QueueBox, *words: str, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
    """``slicer queue WORDS``."""
    command = [*queues.box.prefix, *QUEUE, *words]
    done = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def listed(queues: QueueBox) -> list[dict[str, Any]]:
    document = json.loads(call(queues, "--json").stdout)
    assert document["version"] == 1
    found: list[dict[str, Any]] = document["queues"]
    return found


@contextmanager
def attached(queues: QueueBox, *options: str, **env: str) -> Iterator[Terminal]:
    """``slicer queue jobs.txt`` once more, at a terminal."""
    command = [*QUEUE, "jobs.txt", "--log-dir", "logs", *options]
    with Terminal(*command, env={**queues.box.env, **env}, cwd=queues.root) as terminal:
        terminal.expect("jobs.txt is running already")
        yield terminal


def sockets(queues: QueueBox) -> list[Path]:
    return sorted(queues.box.state.rglob("queue-*"))


# -- the list of queues -------------------------------------------------------------------------------------


# U1, W10: all of this user's, also on simulated GPUs that this shell does not have
def test_the_queues_are_listed_with_counts(queues: QueueBox) -> None:
    assert "No queues are running." in call(queues).stdout
    assert listed(queues) == []
    queues.write("[vram=1G] hold a", "[vram=1G] false", "[vram=99G] true", "[gpus=2] true", "[cancel] job c")
    other = queues.root / "my other.txt"
    other.write_text("[vram=1G] hold b\n")
    first = queues.start()
    queues.started("a")
    first.event("infeasible")
    first.event("finished")
    second = queues.start("--log-dir", "else", "--sim", "1", file=other.name)
    queues.started("b")
    one, two = listed(queues)
    assert (one["file"], one["log_dir"], one["pid"]) == (str(queues.file), str(queues.logs), first.pid)
    assert one["counts"] == {"running": 1, "pending": 1, "failed": 1, "infeasible": 1, "cancelled": 1}
    assert (one["done"], one["failed"], one["unit"], one["state"]) == (1, 2, None, "running")
    assert (two["file"], two["pid"], two["counts"]["running"]) == (str(other), second.pid, 1)
    head, *rows = call(queues).stdout.splitlines()
    assert " ".join(head.split()) == "FILE RUNNING PENDING DONE FAILED FOR LEFT PROCESS LOG DIR"
    assert re.fullmatch(rf"jobs.txt +1 +1 +1 +2 +\S+ +- +pid {first.pid} +logs", rows[0])
    assert rows[1].startswith("'my other.txt' ")
    queues.let("a", "b")
    assert (first.wait(), second.wait()) == (1, 0)
    assert listed(queues) == []
    assert sockets(queues) == []
    queues.assert_clean()


# U1: whoever was killed leaves a socket; one that is stopped is named, and not waited for
def test_dead_and_silent_queues_harm_no_list(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    killed = queues.start()
    queues.started("a")
    killed.kill()
    assert len(sockets(queues)) == 1
    assert listed(queues) == []
    live = queues.start()
    live.event("adopted")
    assert len(sockets(queues)) == 1
    live.send(signal.SIGSTOP)
    silent = call(queues, "--json")
    assert json.loads(silent.stdout)["queues"] == []
    assert json.loads(silent.stdout)["silent"] == [live.pid]
    assert f"the queue of pid {live.pid} does not answer: is it stopped?" in silent.stderr
    live.send(signal.SIGCONT)
    assert [queue["pid"] for queue in listed(queues)] == [live.pid]
    queues.let("a")
    assert live.wait() == 0
    queues.assert_clean()


# U1: apart from those that run, until what they were made of is gone
def test_queues_that_have_ended_are_listed_with_counts(queues: QueueBox) -> None:
    queues.write("[vram=1G] true", "[vram=1G] false", "[vram=1G name=a] hold a", "[vram=1G after=a] job b")
    queue = queues.start()
    queues.started("a")
    assert json.loads(call(queues, "--json").stdout)["ended"] == []
    queue.send(signal.SIGSTOP)
    assert json.loads(call(queues, "--json").stdout)["ended"] == []
    queue.send(signal.SIGCONT)
    queue.send(signal.SIGINT)
    queue.event("stopping")
    queues.let("a")
    assert queue.wait() == 130
    (ended,) = json.loads(call(queues, "--json").stdout)["ended"]
    assert (ended["file"], ended["log_dir"]) == (str(queues.file), str(queues.logs))
    assert ended["counts"] == {"ok": 2, "failed": 1, "pending": 1}
    assert (ended["done"], ended["failed"]) == (2, 1)
    other = queues.root / "other.txt"
    other.write_text("[vram=1G] true\n")
    queues.run("--log-dir", "else", file=other.name)
    first, _, head, *rows = call(queues).stdout.splitlines()
    assert "No queues are running." in first
    assert " ".join(head.split()) == "ENDED RUNNING PENDING DONE FAILED WHEN LOG DIR"
    assert re.fullmatch(r"other.txt +0 +0 +1 +0 +\S+ ago +else", rows[0])
    assert re.fullmatch(r"jobs.txt +0 +1 +2 +1 +\S+ ago +logs", rows[1])
    other.unlink()
    (queues.logs / "journal.jsonl").write_text('{"event":"journal","v":99}\n')
    listed = call(queues, "--json")
    assert json.loads(listed.stdout)["ended"] == []
    assert "newer slicer" in listed.stderr
    assert len(list((queues.box.var_lib / "slicer/queues").iterdir())) == 1
    shutil.rmtree(queues.logs)
    assert call(queues).stderr == ""
    assert list((queues.box.var_lib / "slicer/queues").iterdir()) == []


# U1: a bound, bad files, and a list that cannot be written costs no job
def test_the_list_of_ended_queues_is_bounded_and_harms_none(
    queues: QueueBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.write("[vram=1G] true")
    folder = queues.box.var_lib / "slicer/queues"
    monkeypatch.setattr(recent, "folder_of", lambda _: str(folder))
    for number in range(22):
        recent.note(queues.box.env, str(queues.file), str(queues.root / f"logs{number}"))
    assert len(list(folder.iterdir())) == 20
    queues.run()
    for name, text in (("a", "[" * 9999), ("b", "{}"), ("c", "")):
        (folder / (name * 40)).write_text(text)
    (folder / ("d" * 40)).symlink_to(queues.file)
    (ended,) = json.loads(call(queues, "--json").stdout)["ended"]
    assert ended["log_dir"] == str(queues.logs)
    assert len(list(folder.iterdir())) == 1
    shutil.rmtree(folder)
    folder.write_text("in its place")
    assert call(queues).stderr.startswith(f"slicer: {folder}")
    queue = queues.run("--fresh")
    assert queue.wait() == 0
    assert str(folder) in queue.err


# U1: nobody who asks nonsense, asks much, or never reads holds the queue up
def test_callers_without_manners_harm_no_queue(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    queue = queues.start()
    queues.started("a")
    (path,) = sockets(queues)
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(70)]
    directory = os.open(path.parent, os.O_PATH)  # the path itself may be too long
    for caller in callers:
        caller.connect(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    for caller, said in zip(
        callers,
        (b"{", b"[1]", b'{"v":2,"ask":"standing"}', b'{"v":1}', b'{"v":1,"ask":[]}', b"[" * 99_000,
         b'{"v":1,"ask":"retry","jobs":[{"a":1}]}',
         b'{"v":1,"ask":"retry","jobs":7}', encode({"ask": "lines", "word": 7})),
        strict=False,
    ):  # fmt: skip
        caller.send(said)
        answer = json.loads(caller.recv(1 << 16))
        assert answer.keys() & {"error", "unknown", "lines"}, (said, answer)
    for caller in callers[9:60]:
        caller.setblocking(False)
        for _ in range(100):
            try:
                caller.send(encode({"ask": "watch"}))
            except BlockingIOError:
                break
    queues.append("[vram=1G] job b")
    queue.event("finished")
    for caller in callers:
        caller.close()
    until(lambda: len(listed(queues)) == 1, "it listens again")
    queues.asleep(queue)
    queues.let("a")
    assert queue.wait() == 0
    queues.assert_clean()


# U1: the directory is closed to others
def test_another_user_reaches_no_queue(queues: QueueBox) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root, who can be somebody else")
    queues.write("[vram=1G] hold a")
    queue = queues.start()
    queues.started("a")
    (path,) = sockets(queues)
    ask = "import os,socket,sys; socket.socket(1, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
    as_other = [*unprivileged(12345), sys.executable, "-c", ask, f"./{path.name}"]
    refused = subprocess.run(as_other, cwd=path.parent, capture_output=True, text=True, check=False)
    assert "PermissionError" in refused.stderr
    queues.let("a")
    assert queue.wait() == 0


# -- its board on another terminal --------------------------------------------------------------------------


# U1, W10
def test_the_board_of_a_running_queue_on_another_terminal(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G] hold b 4")
    queue = queues.start("-j", "1")
    queues.started("a")
    with attached(queues) as terminal:
        terminal.expect(f"(pid {queue.pid})")
        terminal.expect("1 running, 1 pending")
        queues.let("a")
        terminal.expect("job 1 ok")
        terminal.expect("1 running, 1 ok")
        terminal.resize(12, 80)
        os.kill(terminal.pid, signal.SIGWINCH)
        terminal.expect("1 running, 1 ok")
        queues.let("b")
        terminal.expect("job 2 failed with exit code 4")
        terminal.expect("1 ok, 1 failed")  # the summary
        assert terminal.end() == 4
    assert queue.wait() == 4
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# U1: whoever leaves leaves the queue alone, and the terminal as it was
@pytest.mark.parametrize(
    ("key", "code"), [("q", 0), ("Q", 0), (CTRL_C, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_leaving_the_board(queues: QueueBox, key: str | signal.Signals, code: int) -> None:
    queues.write("[vram=1G] hold a")
    queue = queues.start()
    queues.started("a")
    with attached(queues) as terminal:
        side = os.open(other_side(terminal.fd), os.O_RDWR | os.O_NOCTTY)
        terminal.expect("1 running")
        assert not termios.tcgetattr(side)[3] & (termios.ECHO | termios.ICANON)
        terminal.type("x")
        if isinstance(key, str):
            terminal.type(key)
        else:
            kill(terminal.pid, key)
        terminal.expect(f"left the board: the queue continues (pid {queue.pid})")
        assert terminal.end() == code
        assert termios.tcgetattr(side)[3] & termios.ECHO
        os.close(side)
    queues.let("a")
    assert queue.wait() == 0
    assert queue.events("stopping") == []
    queues.assert_clean()


# U1, B3: Ctrl-C discards what was typed before, also what poll has just seen
def test_a_key_that_is_gone_is_not_waited_for(queues: QueueBox) -> None:
    program = "from slicer.cli import keys; k = keys.TypedKeys(); k.take();print('leaves:', k.ask_to_leave())"
    with Terminal(sys.executable, "-c", program, env=queues.box.env) as terminal:
        terminal.expect("leaves: False")


# U1
def test_a_viewer_that_is_killed_or_stopped_does_not_hold_the_queue_up(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", *(f"[vram=1G] job b{n}" for n in range(60)))
    queue = queues.start("-j", "1")
    queues.started("a")
    with attached(queues) as killed, attached(queues) as stopped:
        for terminal in (killed, stopped):
            terminal.expect("1 running, 60 pending")
        kill_9(killed.pid)
        kill(stopped.pid, signal.SIGSTOP)
        queues.let("a")
        assert queue.wait() == 0
        kill(stopped.pid, signal.SIGCONT)
        stopped.expect("61 ok")
        assert stopped.end() == 0
    queues.assert_clean()


# U1, E7: kill -9 of the queue; the next one finds the job
def test_the_viewer_of_a_queue_that_is_killed_says_so(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    queue = queues.start()
    queues.started("a")
    with attached(queues) as terminal:
        terminal.expect("1 running")
        queue.kill()
        terminal.expect("the queue was killed or has crashed; slicer queue jobs.txt resumes it")
        assert terminal.end() == 125
    again = queues.start()
    again.event("adopted")
    queues.let("a")
    assert again.wait() == 0
    queues.assert_clean()


# U1: Ctrl-Z gives the shell its terminal; fg shows the board again
def test_the_viewer_under_job_control(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    queue = queues.start()
    queues.started("a")
    env = {**queues.box.env, "VIEW": shlex.join((*QUEUE, "jobs.txt", "--log-dir", "logs"))}
    with Terminal(*BASH, env=env, cwd=queues.root) as shell:
        shell.expect(PROMPT)
        shell.line('eval "$VIEW"; echo "left $?"')
        shell.expect("1 running")
        shell.type(CTRL_Z)
        shell.expect(f"left {128 + signal.SIGTSTP}")
        shell.line("echo here $((40 + 2))")
        shell.expect("here 42")
        shell.line('fg; echo "left $?"')
        shell.expect("1 running")
        shell.type("q")
        shell.expect("left the board: the queue continues")
        shell.expect("left 0")
        shell.line("exit")
        shell.end()
    queues.let("a")
    assert queue.wait() == 0
    queues.assert_clean()


# U1: no colour, no UTF-8, twelve lines
def test_the_board_on_a_poor_terminal(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", *(f"[vram=1G] job ünïcode-{n}" for n in range(30)))
    queue = queues.start("-j", "1")
    queues.started("a")
    poor = {"NO_COLOR": "1", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with attached(queues, **poor) as terminal:
        terminal.resize(12, 80)
        kill(terminal.pid, signal.SIGWINCH)
        terminal.expect("... 28 more pending")
        terminal.type("q")
        terminal.expect("left the board: the queue continues")
        assert terminal.end() == 0
        assert terminal.seen.isascii()
        assert not re.search(r"\x1b\[3\dm", terminal.seen)
    queue.send(signal.SIGINT)
    queues.let("a")
    assert queue.wait() == 130


# U1, E7: scripts see no board, and the file has to be the queue's
def test_without_a_terminal_a_second_queue_is_refused_as_ever(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    (queues.root / "other.txt").write_text("[vram=1G] job b\n")
    queue = queues.start()
    queues.started("a")
    for words in (("jobs.txt",), ("jobs.txt", "--json"), ("other.txt",), ("jobs.txt", "--fresh")):
        refused = call(queues, *words, "--log-dir", "logs", "--sim", "2", "--backend", "plain", code=75)
        assert "already running" in refused.stderr
    other = (*QUEUE, "other.txt", "--log-dir", "logs", "--sim", "2", "--backend", "plain")
    with Terminal(*other, env=queues.box.env, cwd=queues.root) as terminal:
        terminal.expect("already running")
        assert terminal.end() == 75
    queues.let("a")
    assert queue.wait() == 0


# -- retry --------------------------------------------------------------------------------------------------


def retry(queues: QueueBox, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return call(queues, "retry", "jobs.txt", "--log-dir", "logs", *words, code=code)


# W6: what follows it has its turn, too, and all is in the journal
def test_failed_jobs_of_a_running_queue_run_again(queues: QueueBox) -> None:
    fails = 'echo "start $0 $$" >>$LOG; test -e ok'
    queues.write(
        "[vram=1G] hold a", f"[vram=1G name=b] {fails} # b", "[vram=1G after=b] job c",
        f"[vram=1G] {fails} # d",
    )  # fmt: skip
    queue = queues.start()
    queue.event("unrunnable")
    queues.started("a")
    until(lambda: [s for s, _ in queues.statuses().values()].count("failed") == 2, "two have failed")
    assert "no failed job has this number or name" in retry(queues, "1", code=2).stderr
    retry(queues, "b", "--failed", code=2)
    (queues.root / "ok").touch()
    done = retry(queues, "b")
    assert done.stdout == "job 2 is pending again; the queue runs\n"
    queues.ended("c")
    assert retry(queues, "--failed").stdout.startswith("job 4 is pending")
    until(lambda: queues.statuses()[f"{fails} # d"] == ("ok", 0), "d is run again")
    assert retry(queues).stdout == "no job of jobs.txt has failed\n"
    assert len([event for event in queue.events("notice") if "slicer queue retry" in event["text"]]) == 2
    queues.let("a")
    assert queue.wait() == 0
    queues.assert_clean()


# W6, E7: a queue that is stopping starts nothing; the next one runs them
def test_a_retry_while_the_queue_stops_is_for_the_next_one(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G] job b 0 3")
    queue = queues.start()
    queue.event("finished")
    queue.send(signal.SIGINT)
    queue.event("stopping")
    said = retry(queues).stdout
    assert said == "job 2 is pending again; next: slicer queue jobs.txt --log-dir logs\n"
    queues.let("a")
    assert queue.wait() == 130
    assert queues.run().wait() == 3
    assert queues.starts() == {"a": 1, "b": 2}


# -- add ----------------------------------------------------------------------------------------------------


# U1
def test_a_running_queue_takes_added_lines(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a")
    queue = queues.start("--poll", "3600")
    queues.started("a")
    sweep = ("--param", "x=1,2", "--param", "y=3,4", "--name", "n{x}", "--", "job", "b{x}{y}")
    added = call(queues, "add", "jobs.txt", "--vram", "1G", *sweep)
    taken_up = f"taken up by the queue of pid {queue.pid}"
    assert added.stdout == f"4 jobs added to jobs.txt, lines 2 to 5; {taken_up}\n"
    call(queues, "add", "jobs.txt", "--vram", "1G", "--after", "n1", "--", "job c; job d")
    queues.ended("b13", "b14", "b23", "b24", "c", "d")
    refused = call(queues, "add", "jobs.txt", "--after", "nobody", "--", "true", code=2)
    assert "jobs.txt:7:2: no job is named 'nobody'" in refused.stderr
    assert len(queues.file.read_text().splitlines()) == 6
    queues.let("a")
    assert queue.wait() == 0
    assert queue.events("file-kept") == []
    queues.assert_clean()


# U1: many at once, each whole
def test_lines_that_many_add_at_once_are_all_there(queues: QueueBox) -> None:
    queues.file.write_text("# no end of line")
    line = [*queues.box.prefix, *QUEUE, "add", "jobs.txt", "--", "echo"]
    adders = [subprocess.Popen([*line, str(n)], env=queues.box.env, cwd=queues.root) for n in range(8)]
    assert [each.wait() for each in adders] == [0] * 8
    first, *others = queues.file.read_text().splitlines()
    assert first == "# no end of line"
    assert sorted(others) == [f"echo {n}" for n in range(8)]


# -- for those who ask by a word ----------------------------------------------------------------------------


# U1, W11: what logs, wait and show of a queue's job need to know
def test_the_lines_that_a_word_means(queues: QueueBox) -> None:
    lines = "[vram=1G name=a] hold a", "[vram=1G name=b] job b", "[vram=1G after=b] job c"
    queues.write(*lines)
    queue = queues.start("-j", "1")
    queues.started("a")
    (a,) = client.lines_meant(queues.box.env, "a")
    assert (a.label, a.no, a.status, a.attempts, a.pid) == ("jobs.txt#1", 1, "running", 1, queue.pid)
    assert a.log == str(queues.logs / "job0001.log")
    assert (a.jobs_file, a.log_dir) == (str(queues.file), str(queues.logs))
    assert client.lines_meant(queues.box.env, a.job[:6]) == [a]
    (c,) = client.lines_meant(queues.box.env, "jobs.txt#3")
    assert (c.status, c.log, c.job, c.waits_for) == ("pending", "", "", "after b")
    assert client.lines_meant(queues.box.env, "nobody") == []
    assert client.lines_meant(queues.box.env, "") == []
    queues.let("a")
    assert queue.wait() == 0
    assert client.lines_meant(queues.box.env, "a") == []


# W11: of a line, too, the history knows what ran, where, on which GPUs, and where its output is
def test_the_history_has_a_lines_command_directory_log_and_gpus(queues: QueueBox) -> None:
    (queues.root / "sub").mkdir()
    queues.write("[vram=2G cwd=sub] job a; exit 3")
    assert queues.run("--gpu", "1").process.returncode == 3
    (outcome,) = queues.box.outcomes()
    assert outcome.command == ("/bin/sh", "-c", "job a; exit 3")
    assert outcome.directory.rstrip("/") == str(queues.root / "sub")
    assert outcome.log == str(queues.logs / "job0001.log")
    assert (len(outcome.gpus), outcome.gpu_indices) == (1, (1,))
    shown = subprocess.run(
        [*queues.box.prefix, *SLICER, "history", "--failed"],
        env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "job a; exit 3" in shown.stdout
    queues.assert_clean()


# U1: a queue that speaks another version counts as one that does not answer
def test_a_queue_of_another_version_is_left_alone(queues: QueueBox) -> None:
    queues.box.state.mkdir(mode=0o700)
    path = queues.box.state / "queue-000000000000"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as strange:
        strange.bind(str(path))
        strange.listen(5)
        listing = subprocess.Popen(
            [*queues.box.prefix, *QUEUE, "--json"], env=queues.box.env, cwd=queues.root,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        caller, _ = strange.accept()
        caller.recv(4096)
        caller.send(b'{"v":99,"pid":"x"}')
        out, err = listing.communicate(timeout=LONGEST_S)
        assert json.loads(out)["silent"] == [os.getpid()]
        assert "does not answer" in err
        caller.close()


def test_the_counts_are_of_the_lines_that_retry_sees(queues: QueueBox) -> None:  # U1, E6
    queues.write("[vram=1G] false", "[vram=1G] sh -c 'exit 3'")
    assert queues.run().process.returncode == 3
    queues.write("[vram=1G] true")
    queue = queues.start("--watch")
    queue.event("finished")
    (shown,) = listed(queues)
    assert (shown["counts"], shown["done"], shown["failed"]) == ({"ok": 1, "pending": 0}, 1, 0)
    assert "no job of jobs.txt has failed" in call(queues, "retry", "jobs.txt", "--log-dir", "logs").stdout
    call(queues, "stop", "jobs.txt")
    assert queue.wait() == 0
    assert "0" in call(queues).stdout.splitlines()[-1]
