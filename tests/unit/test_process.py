"""Threads and memory of a training process."""

from pathlib import Path

from fltrain.runtime.process import peak_memory

from .helpers import tiny, trained


def test_the_peak_of_a_record_is_that_of_its_run(tmp_path: Path) -> None:
    """Memory that the process used earlier does not count."""
    block = bytearray(2**30)
    del block
    before = peak_memory()
    record = trained(tiny(rounds=1), tmp_path)
    assert 0 < record.costs["peak_memory_bytes"] < before - 2**29
