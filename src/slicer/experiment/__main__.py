"""A job of the experiment, started by its path: so it finds this very slicer, however that is installed."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from slicer.experiment.client import main

    main(sys.argv[1:])
