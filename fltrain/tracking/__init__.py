"""Comparison of runs: MLflow export, data frames, the compare command."""
