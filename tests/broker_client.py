"""A caller of the broker, as a process of its own: it asks for a lease, tells what it hears, does as told.

    python tests/broker_client.py SOCKET '{"gpus": 1, "start": true}'

The object has fields of Acquire, and besides: ``start`` (put a keeper into a scope), ``limits``, ``slice``,
``deaf`` (stop reading once it waits), ``inner`` (what the keeper asks for in its turn, before it ends). Each
line that it writes is a JSON object with the key ``event``. Each line that it reads is a word: ``release``,
``finish`` (the accounts), ``start``, ``end`` (the keeper), ``status``, ``quit``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from slicer.broker.client.connection import ANSWER_S, BrokerFailed, Connection, Lost, NoBroker
from slicer.broker.protocol import messages
from slicer.broker.protocol.wire import ErrorReply
from slicer.errors import SlicerError
from slicer.kernel.proc import start_time
from slicer.record import as_dict

EXTRA = ("start", "limits", "slice", "deaf", "inner")
DEFAULTS: dict[str, Any] = {
    "job": "", "name": "test", "command": "", "profile": "", "binding": "process", "gpus": 0,
    "gpu_choice": (), "vram_mib": None, "margin_mib": 0, "slots": {}, "slot_limits": {}, "priority": 0,
    "expect_s": None, "ahead_of": "", "wait": True, "max_wait_s": None, "runs_anyway": False,
}  # fmt: skip


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def plain(value: Any) -> Any:
    """A record as JSON has it."""
    if hasattr(type(value), "__fields__"):
        return {name: plain(each) for name, each in as_dict(value).items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value


def replies(connection: Connection, asked: messages.Acquire) -> Iterator[Any]:
    """What the request is told, to the last. It is sent again where the connection breaks."""
    continues, is_heard = True, False
    while continues:
        try:
            connection.send(asked, more=True)
            while continues:
                reply = connection.receive(None if is_heard else ANSWER_S)
                if reply is None:
                    raise BrokerFailed("no answer", connection.path)
                continues, is_heard = reply.continues, True
                yield reply.message
        except (Lost, NoBroker) as error:
            if isinstance(error, NoBroker) and not is_heard:
                raise
            time.sleep(0.05)  # it was killed: systemd, or the test, starts another one


class Client:
    def __init__(self, path: str, wish: dict[str, Any]) -> None:
        self.connection = Connection(path)
        self.path = path
        self.extra = {name: wish.pop(name) for name in EXTRA if name in wish}
        self.asked = messages.Acquire(**{**DEFAULTS, "job": os.urandom(6).hex(), **wish})
        self.keeper = 0

    def acquire(self) -> None:
        say("asks", job=self.asked.job, pid=os.getpid())
        for reply in replies(self.connection, self.asked):
            if isinstance(reply, messages.Waiting):
                say("waiting", **plain(reply))
                if self.extra.get("deaf"):
                    signal.pause()
            else:
                say("granted", **plain(reply))

    def start(self) -> None:
        reader, writer = os.pipe()
        if not self.keeper:
            self.keeper = os.fork()
            if not self.keeper:
                os.setsid()
                os.close(writer)
                for fd in (0, 1, 2):
                    os.dup2(os.open(os.devnull, os.O_RDWR), fd)  # nobody waits for what it could write
                if not os.read(reader, 1):
                    os._exit(0)  # we have ended before it was started
                inner = self.extra.get("inner")
                if inner is not None:
                    os.execv(sys.executable, [sys.executable, __file__, self.path, json.dumps(inner)])
                os.execvp("sleep", ["sleep", "inf"])
        limits = tuple(self.extra.get("limits", {}).items())
        message = messages.Start(
            self.asked.job, self.extra.get("slice", "cpu"), "a test", limits, False,
            self.keeper, start_time(self.keeper) or 0,
        )  # fmt: skip
        reply = None
        while reply is None:
            try:
                reply = self.connection.ask(message, timeout_s=30.0)
            except Lost:
                time.sleep(0.05)  # the broker was killed: systemd starts another one
        os.write(writer, b"x")
        say("started", keeper=self.keeper, **plain(reply))

    def obey(self, word: str) -> None:
        job = self.asked.job
        if word == "release":
            self.connection.ask(messages.Release(job))
        elif word == "finish":
            self.connection.ask(messages.Finished(job, "exited", 0, 1.0, 0.0, 0.5, 1 << 20, ()))
        elif word == "start":
            self.start()
        elif word == "status":
            say("status", **plain(self.connection.ask(messages.Status())))
            return
        elif word == "end":
            os.kill(self.keeper, signal.SIGKILL)
            os.waitpid(self.keeper, 0)
        say("done", word=word)


def main() -> None:
    client = Client(sys.argv[1], json.loads(sys.argv[2]))
    try:
        client.acquire()
        if client.extra.get("start"):
            client.start()
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            client.obey(line.strip())
    except SlicerError as failure:
        error = failure.__cause__
        if not isinstance(error, ErrorReply):
            raise
        busy = plain(error.busy) if error.busy else None
        say("error", name=error.name, message=error.message, hint=error.hint, busy=busy)
    except Exception as error:
        say("failed", kind=type(error).__name__, message=str(error), at_s=time.monotonic())


if __name__ == "__main__":
    main()
