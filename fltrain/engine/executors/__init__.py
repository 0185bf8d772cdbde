"""Executors: three ways to run the same local training."""
