"""From run records and published values to tables and figures. No torch here."""
