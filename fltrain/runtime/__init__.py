"""The machine: devices, determinism, threads and memory, signals, provenance."""
