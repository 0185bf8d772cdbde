"""Executors: four ways to run the same local training."""
