"""Runs commands for the host of a QEMU test machine, over one virtio port; uses the standard library only.

One JSON object a line. The host sends {"id", "argv", "env", "input"}; the agent answers with any number of
{"id", "stream": "stdout"|"stderr", "data"} and at last {"id", "exit"}: the exit code, or minus the signal
that ended the command. Bytes travel as base64. {"ready": true} is the agent's first line.
"""

import base64
import json
import os
import subprocess
import sys
import threading

# A process that the command left behind may hold its pipes open for ever.
PIPE_GRACE_S = 2.0


class Port:
    """The line to the host; writing is safe from any thread."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def send(self, message):
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]

    def lines(self):
        """The host's lines, for ever: a port without a host at its other end reads as empty."""
        rest = b""
        while True:
            chunk = os.read(self._fd, 65536)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
            if not chunk:
                threading.Event().wait(0.2)


def pump(port, number, name, stream):
    while chunk := os.read(stream.fileno(), 32768):
        port.send({"id": number, "stream": name, "data": base64.b64encode(chunk).decode()})


def feed(child, data):
    try:
        with child.stdin as stdin:
            stdin.write(data)
    except BrokenPipeError:
        pass  # the command did not want its input


def execute(port, request):
    number = request["id"]
    try:
        child = subprocess.Popen(
            request["argv"],
            env=request["env"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        text = base64.b64encode(f"{error}\n".encode()).decode()
        port.send({"id": number, "stream": "stderr", "data": text})
        port.send({"id": number, "exit": 127})
        return
    workers = [
        threading.Thread(target=pump, args=(port, number, "stdout", child.stdout)),
        threading.Thread(target=pump, args=(port, number, "stderr", child.stderr)),
        threading.Thread(target=feed, args=(child, base64.b64decode(request["input"]))),
    ]
    for worker in workers:
        worker.daemon = True
        worker.start()
    code = child.wait()
    for worker in workers:
        worker.join(PIPE_GRACE_S)
    port.send({"id": number, "exit": code})


def main():
    port = Port(sys.argv[1])
    port.send({"ready": True})
    for line in port.lines():
        if line.strip():
            threading.Thread(target=execute, args=(port, json.loads(line)), daemon=True).start()


main()
