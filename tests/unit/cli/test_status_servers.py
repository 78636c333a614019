"""The servers of `slicer serve` in `slicer status`."""

from __future__ import annotations

from slicer.cli.status_json import server_json, status_json, without_clocks
from slicer.cli.status_text import lines, servers_section
from slicer.columns import WARNING
from slicer.record import replace
from slicer.state.standings import ServerStanding
from tests.unit.cli.made_up_status import FULL, IDLE, row_of

NOW_S = 1_800_000_000.0
OLLAMA = ServerStanding(
    name="ollama", kind="ollama", listen=("127.0.0.1:11434",), state="ready", since_s=NOW_S - 723,
    requests=2, served=17, idle_since_s=None, job="3f2a9c01b7de", trouble="", pid=4711,
)  # fmt: skip
IDLING = replace(OLLAMA, requests=0, served=19, idle_since_s=NOW_S - 42)
STOPPED = replace(OLLAMA, state="stopped", requests=0, idle_since_s=None, job="")


def text(*servers: ServerStanding) -> str:
    return "".join(f"{line.text}\n" for line in servers_section(servers, NOW_S).lines)


def test_each_server_has_its_state_its_requests_and_since_when_it_is_idle() -> None:  # B6
    assert text(OLLAMA).splitlines() == [
        "SERVER  STATE    FOR  REQUESTS  SERVED  IDLE  JOB",
        "ollama  ready  12m3s         2      17     -  3f2a9c01b7de",
        "  ollama - 127.0.0.1:11434 - pid 4711",
    ]
    assert row_of(text(IDLING), "ready").split()[-2:] == ["42s", OLLAMA.job]
    assert row_of(text(STOPPED), "stopped").split() == ["ollama", "stopped", "12m3s", "0", "17", "-", "-"]


def test_what_went_wrong_stands_below_it() -> None:  # B6
    stuck = replace(IDLING, state="stuck", trouble="8.0G are still in use on GPU 0\x1b[2J")
    (entry,) = servers_section((stuck,), NOW_S).entries
    assert "stuck" in entry[0].text
    assert [line.style for line in entry] == [WARNING, "dim", WARNING]
    assert entry[2].text == "  8.0G are still in use on GPU 0\\x1b[2J"


def test_it_fits_into_80_columns() -> None:  # B6
    long = replace(
        OLLAMA, name="q" * 18, state="releasing", since_s=NOW_S - 86000, requests=200, served=123456,
        idle_since_s=NOW_S - 86000,
    )  # fmt: skip
    assert max(map(len, text(OLLAMA, long, STOPPED).splitlines())) <= 80


def test_the_clock_may_be_set_back() -> None:  # B6
    ahead = replace(IDLING, since_s=NOW_S + 5, idle_since_s=NOW_S + 5)
    assert row_of(text(ahead), "ready").split()[2] == "0s"


def test_without_servers_nothing_is_said_of_them() -> None:  # B6
    assert not any("SERVER" in line.text for line in lines(FULL))
    assert any(line.text.startswith("SERVER") for line in lines(IDLE, (OLLAMA,)))


def test_scripts_are_told_all_of_it() -> None:  # B6
    (data,) = status_json(IDLE, (OLLAMA,))["servers"]
    assert data == {
        "server": "ollama", "kind": "ollama", "listen": ["127.0.0.1:11434"], "state": "ready",
        "state_for": data["state_for"], "requests": 2, "served": 17, "idle_for": None, "job": OLLAMA.job,
        "trouble": None, "pid": 4711,
    }  # fmt: skip
    assert server_json(IDLING, NOW_S)["idle_for"] == 42.0
    assert status_json(IDLE)["servers"] == []


def test_time_alone_is_no_change() -> None:  # B6
    before, after = (server_json(IDLING, NOW_S + each) for each in (0, 9))
    assert before != after
    document = status_json(IDLE, (IDLING,))
    told = [without_clocks({**document, "servers": [each]}) for each in (before, after)]
    assert told[0] == told[1]
    changed = server_json(OLLAMA, NOW_S)
    assert without_clocks({**document, "servers": [changed]}) != told[0]
