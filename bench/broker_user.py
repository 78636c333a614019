"""One user of the broker's benchmark, as a process of that user. Standard library only.

It reads orders from stdin. Each is a line of JSON, and so is each answer.

    ["run", ARGV, ENVIRON]    run a command; answers how long it took, from fork to the end of the wait
    ["wait", N]               have N connections wait for the slot `bench`; answers when all do
    ["serve", HOLD_S, LOG]    from now on, each one that is granted the slot keeps it for HOLD_S and gives
                              it back; notes the instants of both in LOG
    ["ask", N]                N times: ask for the slot without waiting; answers how long each refusal took
    ["leave"]                 hang up
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

SOCKET = "/run/slicer-broker/socket"
SLOT = "bench"
DEADLINE_S = 60.0
PAUSE_S = 0.03  # one user gets a part of the broker's time, and that is not what is measured
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Caller:
    """One connection, in varlink's own form: nothing of slicer's client is measured."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(DEADLINE_S)
        self._sock.connect(SOCKET)
        self._heard = b""
        self.job = os.urandom(6).hex()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, method: str, parameters: dict[str, Any], *, more: bool = False) -> None:
        call = {"method": f"io.slicer.Broker.{method}", "parameters": parameters, "more": more}
        self._sock.sendall(json.dumps(call).encode() + b"\0")

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self._heard:
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionError("the broker hung up")
            self._heard += data
        frame, _, self._heard = self._heard.partition(b"\0")
        found: dict[str, Any] = json.loads(frame)
        return found

    def acquire(self, *, wait: bool) -> None:
        asked: dict[str, Any] = {
            "job": self.job, "name": "bench", "command": "", "profile": "", "binding": "process", "gpus": 0,
            "gpu_choice": [], "margin_mib": 0, "slots": {SLOT: 1}, "slot_limits": {}, "priority": 0,
            "ahead_of": "", "wait": wait, "runs_anyway": False,
        }  # fmt: skip
        self.send("Acquire", asked, more=wait)

    def close(self) -> None:
        self._sock.close()


def status_s() -> float:
    """How long a call takes from connect to the answer, whether or not the broker runs."""
    begin = time.perf_counter()
    caller = Caller()
    caller.send("Status", {})
    reply = caller.receive()
    took = time.perf_counter() - begin
    caller.close()
    if "error" in reply:
        raise RuntimeError(reply)
    return took


def _run(argv: list[str], environ: dict[str, str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(argv, env=environ, check=False, **QUIET)  # type: ignore[call-overload]
    took = time.perf_counter() - begin
    if done.returncode != 0:
        raise RuntimeError(f"{argv} ended with {done.returncode}")
    return took


def _waiting(number: int) -> list[Caller]:
    callers = []
    for _ in range(number):
        caller = Caller()
        caller.acquire(wait=True)
        reply = caller.receive()
        if "waiting" not in reply.get("parameters", {}):
            raise RuntimeError(reply)
        callers.append(caller)
    return callers


def _refused(number: int) -> list[float]:
    took = []
    for _ in range(number):
        caller = Caller()
        begin = time.perf_counter()
        caller.acquire(wait=False)
        reply = caller.receive()
        took.append(time.perf_counter() - begin)
        caller.close()
        if reply.get("error") != "io.slicer.Broker.Busy":
            raise RuntimeError(reply)
        time.sleep(PAUSE_S)
    return took


def _serve(callers: list[Caller], hold_s: float, log: str) -> None:
    """Until an order comes."""
    poll = select.poll()
    by_fd = {caller.fileno(): caller for caller in callers}
    for fd in (0, *by_fd):
        poll.register(fd, select.POLLIN)
    with open(log, "ab", buffering=0) as file:
        while True:
            for fd, _ in poll.poll():
                now_ns = time.monotonic_ns()
                if fd == 0:
                    return
                caller = by_fd[fd]
                reply = caller.receive()
                if "error" in reply:
                    raise RuntimeError(reply)
                if "granted" not in reply["parameters"]:
                    continue  # news of its place
                time.sleep(hold_s)
                file.write(f"granted {now_ns}\nreleased {time.monotonic_ns()}\n".encode())
                caller.send("Release", {"job": caller.job})
                caller.receive()
                poll.unregister(fd)


def main() -> None:
    """Obey until stdin ends."""
    callers: list[Caller] = []
    while line := os.read(0, 65536):
        word, *rest = json.loads(line)
        answer: Any = None
        if word == "run":
            answer = _run(*rest)
        elif word == "wait":
            callers = _waiting(*rest)
        elif word == "ask":
            answer = _refused(*rest)
        elif word == "serve":
            _serve(callers, *rest)
            continue
        elif word == "leave":
            for caller in callers:
                caller.close()
            callers = []
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
