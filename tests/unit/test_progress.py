"""Texts about jobs on the terminal."""

import pytest
from snakemake_logger_plugin_fltrain import difference, last_words


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("12:00:01 round 1\nerror: no image\nremedy: fetch it\n", "error: no image\nremedy: fetch it"),
        ("error: of an earlier start\n12:00:01 round 1\n12:00:02 round 2\n", "12:00:02 round 2"),
        ("error: the only line", "error: the only line"),
        ("\n".join(map(str, range(50))), "\n".join(map(str, range(30, 50)))),
        ("", ""),
    ],
)
def test_the_end_of_a_log_follows_its_last_line_of_progress(log: str, words: str) -> None:
    assert last_words(log) == words


def test_of_long_parameters_only_the_difference_is_printed() -> None:
    before, now = ("x" * 1000 + f" {word} classes" + "y" * 1000 for word in ("many", "few"))
    text = difference(f"reason: Params have changed: before: {before} now: {now} ")
    assert "many classes" in text and "few classes" in text and len(text) < 700
    short = "reason: Params have changed: before: 1 now: 2"
    assert difference(short) == short
