"""Overview pages of a scale."""
