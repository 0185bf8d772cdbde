"""Records to tables, figures, claims and overview; verification of results."""
