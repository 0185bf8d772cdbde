"""Configuration base, registry, errors, files, random streams and statistics: imports nothing of fltrain."""
