"""Write the manual pages (``make man``): ``python -m tools.manpages``. With --check say which are old."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.manpages.pages import pages, stale

MAN = Path(__file__).parents[2] / "man"


def main() -> int:
    """Returns the exit code: 1 if --check found pages that are not as they should be."""
    parser = argparse.ArgumentParser(prog="python -m tools.manpages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    found = pages()
    old = stale(MAN, found)
    if arguments.check:
        print("\n".join(old) or "all manual pages are current")
        return 1 if old else 0
    for name in old:
        if name in found:
            (MAN / name).write_text(found[name], encoding="utf-8")
        else:
            (MAN / name).unlink()
    print(f"{len(found)} manual pages in {MAN}, {len(old)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
