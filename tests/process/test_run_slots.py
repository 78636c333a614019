"""Named slots between processes: told by name, passed by those who want another, freed by any death."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.patience import until
from tests.process.harness import Box, Gate, kill_9


# A1, A2, B1, issue: named slots
def test_a_named_slot_is_waited_for_by_its_name_and_freed_by_any_death(
    make_box: Callable[[int], Box], gate: Gate
) -> None:
    box = make_box(3)
    config = box.root / "slots.toml"
    config.write_text(
        '[slots]\nmatlab = 1\nocr = 2\n[profiles.solve]\ninherits = "heavy"\nslots = { matlab = 1 }\n'
    )
    box.env["SLICER_CONFIG"] = str(config)
    job = box.hold(gate, "--slot", "matlab", "--slot", "ocr=2", name="holder")
    assert job.lease.slots == {"cpu": 1, "matlab": 1, "ocr": 2}
    waiter = box.wait_in_line("waiter", options=("-p", "solve"))
    # Who wants something else passes it.
    assert box.run("-q", "-p", "heavy", "--", "true").returncode == 0
    busy = box.run("-q", "--slot", "ocr", "--no-wait", "--", "true")
    found = json.loads(busy.stderr)
    assert (busy.returncode, found["error"], found["slot"]) == (75, "slot-busy", "ocr")
    assert found["holder"]["name"] == "holder"
    kill_9(job.outer, job.keeper, job.command)
    assert waiter.wait() == 0
    assert box.started("waiter")
    until(lambda: box.snapshot().leases == (), "all is given back")
    # A job inside has the slot of the one around it.
    inner = ("inner", "--slot", "matlab", "--no-wait", "--", "true")
    inside = box.run("-q", "--slot", "matlab", "--", *inner)
    assert (inside.returncode, inside.stderr) == (0, "")
    assert next(each for each in box.outcomes() if each.name == "waiter").slots == {"cpu": 1, "matlab": 1}
    box.assert_clean()
