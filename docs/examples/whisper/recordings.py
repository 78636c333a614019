#!/usr/bin/env python3
"""Create recordings to caption: WAV files of real lengths, all silence, which need hardly any space.

    recordings.py DIRECTORY [--files 4100] [--long 20] [--surround 5]

It creates --files files of 20 seconds to 50 minutes. --long of them are longer than an hour (up to three),
and --surround have six channels, which need more GPU memory than usual. Equal numbers give equal files.
"""

import argparse
import os
import random
import struct

RATE = 8  # samples a second: an hour is 29 kB


def write(path: str, seconds: int, channels: int) -> None:
    """A WAV file of one byte a sample. Its samples are a hole in the file."""
    size = seconds * RATE * channels
    form = struct.pack("<IHHIIHH", 16, 1, channels, RATE, RATE * channels, channels, 8)
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make recordings to caption.")
    parser.add_argument("directory")
    parser.add_argument("--files", type=int, default=4100)
    parser.add_argument("--long", type=int, default=20)
    parser.add_argument("--surround", type=int, default=5)
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    chance = random.Random(options.files)
    special = chance.sample(range(options.files), options.long + options.surround)
    is_long, is_surround = set(special[: options.long]), set(special[options.long :])
    for number in range(options.files):
        seconds, channels = chance.randint(20, 3000), 1
        if number in is_long:
            seconds = chance.randint(3601, 3 * 3600)
        if number in is_surround:
            seconds, channels = chance.randint(2400, 3000), 6
        write(os.path.join(options.directory, f"talk-{number + 1:04}.wav"), seconds, channels)


if __name__ == "__main__":
    main()
