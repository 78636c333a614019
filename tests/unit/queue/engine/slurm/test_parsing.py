"""What Slurm's commands print, and what they should never print. (X9)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.engine.slurm import parsing
from slicer.queue.engine.slurm.parsing import Node, SlurmTask

BATCH = "0123456789ab"


# X9
@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("main|gpu:2,shard:48|32|16000", Node("main", 2, 24, 32, 16000)),
        ("main|gpu:a100:4(S:0-1),shard:a100:320(S:0,1)|64+|512000+", Node("main", 4, 80, 64, 512000)),
        ("cpu|(null)|8|1000", Node("cpu", 0, 0, 8, 1000)),
        ("odd|shard:8|8|1000", Node("odd", 0, 0, 8, 1000)),
        ("two|gpu:a:1,gpu:b:2|8|1000", Node("two", 3, 0, 8, 1000)),
    ],
)
def test_nodes_are_read(line: str, node: Node) -> None:
    assert parsing.nodes(f"{line}\nnonsense\n") == (node,)


# X9: a job's name and comment are anybody's
def test_only_tasks_of_this_user_whose_name_and_comment_agree_count() -> None:
    said = f"""\
7|3|1000|slicer-{BATCH}|RUNNING|None|n1|{BATCH}
8|0|1001|slicer-{BATCH}|FAILED|None|n2|{BATCH}
9|0|1000|slicer-{BATCH}|FAILED|None|n2|other
10|N/A|1000|slicer-{BATCH}|FAILED|None|n2|{BATCH}
x|1|1000|slicer-{BATCH}|FAILED|None|n2|{BATCH}
11|2|1000|mine|FAILED|None|n2|{BATCH}
nonsense
"""
    task = SlurmTask("7", 3, "RUNNING", "None", "n1")
    assert parsing.tasks(said, 1000) == {(BATCH, 3): task}
    assert (task.is_active, task.is_stuck) == (True, False)
    others = [task._replace(position=1), task._replace(array="8")]
    assert parsing.numbers([task, *others]) == ["7_[1,3]", "8_[3]"]
    assert task._replace(state="PENDING", reason="launch failed requeued held").is_stuck
    assert not task._replace(state="NODE_FAIL").is_active


@given(st.text())
def test_no_text_makes_the_readers_fail(text: str) -> None:  # X9
    parsing.nodes(text)
    parsing.tasks(text, 0)
    parsing.array_of(text)
    parsing.last_words(text)


# X9
@pytest.mark.parametrize(
    ("said", "words", "is_refusal"),
    [
        (
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "Invalid partition name specified", True,
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "Requested node configuration is not available", True,
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller",
            "Unable to contact slurm controller", False,
        ),
        ("", "", False),
    ],
)  # fmt: skip
def test_errors_of_sbatch_are_told_apart(said: str, words: str, is_refusal: bool) -> None:
    assert (parsing.last_words(said), parsing.is_refusal(said)) == (words, is_refusal)


def test_the_number_of_an_array_is_read() -> None:  # X9
    assert [parsing.array_of(text) for text in ("12\n", "12;cluster\n", "", "Submitted")] == [
        "12",
        "12",
        "",
        "",
    ]
