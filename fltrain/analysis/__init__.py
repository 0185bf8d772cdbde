"""A finished run, loaded for analysis: class preference and feature inversion."""
