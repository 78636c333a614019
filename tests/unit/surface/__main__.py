"""``python -m tests.unit.surface [SCENE...]`` writes the golden copies anew."""

from __future__ import annotations

import sys

from tests.unit.surface import golden
from tests.unit.surface.box import made
from tests.unit.surface.scenes import SCENES

for name in sys.argv[1:] or SCENES:
    with made() as box:
        found = SCENES[name](box)
    path = golden.path_of(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in golden.rendered(found, {})))
    print(f"wrote {path}")
