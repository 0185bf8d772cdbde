"""Claims of a paper judged on the runs."""
