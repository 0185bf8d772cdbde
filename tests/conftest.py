"""Settings of all tests."""

import torch

# One thread fixes the order of sums, and is fast enough for small networks.
torch.set_num_threads(1)
