"""Settings and fixtures of all tests."""

from collections.abc import Iterator

import pytest
import torch

from fltrain.runtime.determinism import determined

# One thread fixes the order of sums, and is fast enough for small networks.
torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device that the test runs on; `make test-gpu` runs it on the GPU."""
    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    chosen = torch.device(request.param)
    with determined("exact", chosen):
        yield chosen
