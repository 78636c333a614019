"""``python -m bench.sharing``: it measures the slicer of the checkout that it is in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

if __name__ == "__main__":
    from bench.sharing.command import main

    sys.exit(main(sys.argv[1:]))
