"""Threads and memory of a training process."""

import subprocess
import sys
from pathlib import Path

import pytest

from fltrain.runtime.process import peak_memory

from .helpers import tiny, trained

HELD = """
import ctypes, re, sys
from pathlib import Path
from fltrain.runtime.process import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def held():
    return int(re.search(r"VmRSS:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

if sys.argv[1] == "kept":
    keep_freed_memory()
before, size = held(), 24 * 2**20
block = ctypes.c_void_p(libc.malloc(size))
ctypes.memset(block, 1, size)
libc.free(block)
print(held() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "megabytes"), [("kept", (20, 30)), ("given back", (-4, 4))])
def test_freed_memory_stays_in_the_process(mode: str, megabytes: tuple[int, int]) -> None:
    done = subprocess.run([sys.executable, "-c", HELD, mode], capture_output=True, text=True, check=True)
    least, most = megabytes
    assert least <= int(done.stdout) <= most


def test_the_peak_of_a_record_is_that_of_its_run(tmp_path: Path) -> None:
    """Memory that the process used earlier does not count."""
    block = bytearray(2**30)
    del block
    before = peak_memory()
    record = trained(tiny(rounds=1), tmp_path)
    assert 0 < record.costs["peak_memory_bytes"] < before - 2**29
