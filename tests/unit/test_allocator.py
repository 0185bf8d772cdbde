"""Memory of a process that trains."""

import subprocess
import sys

import pytest

HELD = """
import re, sys
from pathlib import Path
import torch
from fltrain.allocator import keep_freed_memory

def held():
    return int(re.search(r"VmRSS:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

if sys.argv[1] == "kept":
    keep_freed_memory()
torch.set_num_threads(1)
torch.ones(8)
before = held()
block = torch.ones(24 * 2**18)
del block
print(held() - before)
"""


@pytest.mark.parametrize(("how", "megabytes"), [("kept", (20, 30)), ("given back", (-4, 4))])
def test_freed_memory_is_kept(how: str, megabytes: tuple[int, int]) -> None:
    done = subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, text=True, check=True)
    least, most = megabytes
    assert least <= int(done.stdout) <= most
