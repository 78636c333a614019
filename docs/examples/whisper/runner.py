#!/usr/bin/env python3
"""A video runner: captions every recording in a directory, several at a time.

    runner.py DIRECTORY [--workers 6] [--pause 0.5] [-- COMMAND…]

It calls COMMAND (default: slicer route whisper -- whisper) with a recording and --output_dir. It knows
nothing about GPUs, except that exit code 75 means: busy, try again later. Meanwhile its worker takes another
recording, after a pause of the given number of seconds. Started again, it skips recordings with captions.
"""

import argparse
import collections
import os
import subprocess
import sys
import threading
import time

BUSY = 75


class Runner:
    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options = options
        self.command = command
        self.waiting = collections.deque(sorted(filter(self.has_none, os.listdir(options.directory))))
        self.running = 0
        self.done = self.busy = 0
        self.failed: list[str] = []
        self.change = threading.Condition()

    def has_none(self, name: str) -> bool:
        captions = os.path.join(self.options.directory, name.removesuffix(".wav") + ".srt")
        return name.endswith(".wav") and not os.path.exists(captions)

    def work(self) -> None:
        while (name := self.next()) is not None:
            directory = self.options.directory
            line = [*self.command, os.path.join(directory, name), "--output_dir", directory]
            code = subprocess.run(line, stdin=subprocess.DEVNULL, check=False).returncode
            with self.change:
                self.running -= 1
                if code == 0:
                    self.done += 1
                elif code == BUSY:
                    self.busy += 1
                    self.waiting.append(name)
                else:
                    self.failed.append(f"{name}: exit {code}")
                self.change.notify_all()
            if code == BUSY:
                time.sleep(self.options.pause)

    def next(self) -> str | None:
        """The next recording; None if none waits and none can come back."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or not self.running)
            if not self.waiting:
                return None
            self.running += 1
            return self.waiting.popleft()


def main() -> int:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Caption every recording of a directory.")
    parser.add_argument("directory")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.5)
    options = parser.parse_args(words[:split])
    began = time.monotonic()
    runner = Runner(options, words[split + 1 :] or ["slicer", "route", "whisper", "--", "whisper"])
    workers = [threading.Thread(target=runner.work) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_s = time.monotonic() - began
    print(f"{runner.done} captioned in {took_s:.0f}s, {runner.busy} times busy, {len(runner.failed)} failed")
    print(*runner.failed, sep="\n", end="\n" if runner.failed else "")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
