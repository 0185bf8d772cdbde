"""Settings of all tests."""

import torch

# One thread: sums are taken in one order, and machines with many cores are no slower for small networks.
torch.set_num_threads(1)
