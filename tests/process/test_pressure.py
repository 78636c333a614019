"""Nothing is started while the machine stalls."""

from __future__ import annotations

import json

from tests.patience import until
from tests.process.harness import Box

RULE = '[waiting]\npressure = "memory 20% 10s"\n'
SAID = "some avg10={}.00 avg60=0.00 avg300=0.00 total=1\n"


# X5: it waits, says why, and begins once the machine stalls less; what takes no slot does not wait
def test_a_job_waits_while_the_machine_stalls(box: Box) -> None:
    config, said = box.root / "config.toml", box.root / "sysroot" / "proc" / "pressure" / "memory"
    said.parent.mkdir(parents=True)
    said.write_text(SAID.format(34))
    config.write_text(RULE)
    box.env.update(SLICER_CONFIG=str(config), SLICER_SYSROOT=str(box.root / "sysroot"))
    busy = json.loads(box.run("-q", "-p", "heavy", "--no-wait", "--", "true").stderr)
    why = "the machine stalls for memory 34% of the time (more than 20%)"
    assert (busy["error"], busy["policy"]) == ("cpu-busy", why)
    assert box.run("-q", "-p", "light", "--", "true").returncode == 0
    process = box.start("-p", "heavy", "--", "true")
    until(lambda: box.snapshot().tickets or process.poll() is not None, "it waits")
    said.write_text(SAID.format(20))
    until(lambda: process.poll() is not None, "it has begun")
    assert process.returncode == 0
    assert process.stderr is not None
    assert f"waiting for a CPU slot: {why}" in process.stderr.read().decode()
    box.assert_clean()
