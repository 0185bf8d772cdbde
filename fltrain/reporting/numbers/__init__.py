"""Values per cell and seed, and their comparison with published values."""
