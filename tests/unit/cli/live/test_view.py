"""What a key does to the live view."""

from __future__ import annotations

import pytest

from slicer.cli.live.view import Act, Content, View, settled, step
from slicer.record import replace
from tests.unit.cli.live.content import ALICE, BOB, CONTENT, JOBS, LATER, ROOT, STATUS, UUIDS, VIEW, WAITING

TRAIN, EVAL = JOBS[0], JOBS[1]  # Alice's, and Bob's, which Ctrl-Z stopped


def after(view: View, *keys: str, content: Content = CONTENT) -> tuple[View, list[Act]]:
    """The view after these keys, and what they ask for."""
    acts = []
    for key in keys:
        view, act = step(view, key, content, 24)
        acts += [act] if act else []
    return view, acts


def acts(job: str, *keys: str, uid: int = ALICE, content: Content = CONTENT) -> list[Act]:
    content = replace(content, uid=uid)
    return after(settled(replace(VIEW, chosen=job), content), *keys, content=content)[1]


def test_the_first_job_is_chosen_and_keys_move_on() -> None:  # W7
    assert VIEW.chosen == TRAIN.job
    assert after(VIEW, "down")[0].chosen == EVAL.job
    assert after(VIEW, "up")[0].chosen == UUIDS[7]
    assert after(VIEW, "home")[0].chosen == after(VIEW, "home", "up")[0].chosen == UUIDS[0]
    assert after(VIEW, "end")[0].chosen == after(VIEW, "end", "down")[0].chosen == LATER.job
    assert after(VIEW, "page down")[0].place == VIEW.place + 12
    assert after(VIEW, "page down", "page up")[0] == VIEW
    assert after(VIEW, "x", "é", "left") == (VIEW, [])


def test_the_chosen_job_stays_chosen_and_its_successor_follows_it() -> None:  # W7
    view, _ = after(VIEW, "down")
    grown = replace(CONTENT, status=replace(STATUS, leases=(JOBS[5], *JOBS[:5])))
    moved = settled(view, grown)
    assert (moved.chosen, moved.place) == (EVAL.job, view.place + 1)
    gone = replace(CONTENT, status=replace(STATUS, leases=(TRAIN, *JOBS[2:])))
    assert settled(view, gone).chosen == JOBS[2].job
    empty = replace(CONTENT, status=replace(STATUS, leases=(), tickets=(), gpus=(), later=()))
    assert settled(view, empty).chosen == ""
    assert after(settled(view, empty), "down", "k", "p", "end", content=empty)[1] == [
        Act("say", text="choose a job to stop with the arrow keys"),
        Act("say", text="choose a job to pause with the arrow keys"),
    ]


def test_a_stop_is_asked_about_first() -> None:  # W7
    stop = Act("stop", TRAIN.job, "train")
    view, none = after(VIEW, "k")
    assert (view.mode, none) == ("stop", [])
    assert after(view, "y") == (VIEW, [stop])
    for key in ("n", "q", "k", "esc", "enter", "down"):
        assert after(view, key) == (VIEW, []), key
    assert acts(WAITING[0].job, "k", "y")[0].job == WAITING[0].job
    assert acts(LATER.job, "k", "y") == [Act("stop", LATER.job, "report")]


def test_a_question_about_a_job_that_has_ended_stops_no_other() -> None:  # W7
    view, _ = after(VIEW, "k")
    gone = replace(CONTENT, status=replace(STATUS, leases=JOBS[4:]))
    moved = settled(view, gone)
    assert (moved.mode, moved.chosen) == ("rows", JOBS[4].job)
    assert after(moved, "y", content=gone)[1] == []


def test_p_pauses_what_runs_and_resumes_what_stands_still() -> None:  # W7
    assert acts(TRAIN.job, "p") == [Act("pause", TRAIN.job, "train")]
    assert acts(EVAL.job, "p", uid=BOB) == [Act("resume", EVAL.job, "eval")]
    assert acts(JOBS[4].job, "p") == [Act("resume", JOBS[4].job, "sweep-5")]
    [said] = acts(WAITING[0].job, "p")
    assert (said.verb, "only a job that runs" in said.text) == ("say", True)


@pytest.mark.parametrize(("key", "what"), [("k", "stop"), ("p", "pause"), ("l", "show the log of")])
def test_jobs_of_others_are_out_of_reach_but_for_root(key: str, what: str) -> None:  # W7
    text = f"eval is a job of {BOB}: only {BOB} and root may {what} it"
    assert acts(EVAL.job, key, "y", uid=ALICE)[:1] == [Act("say", text=text)]
    assert acts(EVAL.job, key, "y", uid=ROOT)[0].job == EVAL.job
    assert acts(UUIDS[0], key)[0].verb == "say"


def test_a_filter_is_typed_kept_and_ended() -> None:  # W7
    view, _ = after(VIEW, "/", "s", "q", "backspace", "w", "down", "enter")
    assert (view.filter, view.mode, view.chosen) == ("sw", "rows", JOBS[4].job)
    assert after(view, "esc")[0].filter == ""
    assert after(VIEW, "/", "q", "esc") == (VIEW, [])
    view, _ = after(VIEW, "/", *"nothing has this", "enter")
    assert after(view, "end", "k")[1][0].verb == "say"  # only the GPUs are left
    assert len(after(VIEW, "/", *"x" * 999)[0].filter) < 100


def test_panels_scroll_and_any_other_key_returns() -> None:  # W7
    view, _ = after(VIEW, "?")
    assert (view.mode, after(view, "down")[0].top, after(view, "x")[0].mode) == ("help", 0, "rows")
    low = step(view, "end", CONTENT, 10)[0]
    assert low.top > 0
    assert step(low, "down", CONTENT, 10)[0] == low
    assert step(low, "up", CONTENT, 10)[0].top == low.top - 1
    assert after(VIEW, "m", "q")[0] == VIEW
    assert after(VIEW, "m")[0].mode == "more"


def test_q_leaves() -> None:
    assert after(VIEW, "q")[1] == after(VIEW, "Q")[1] == [Act("leave")]
    assert acts(TRAIN.job, "l") == [Act("log", TRAIN.job, "train")]
