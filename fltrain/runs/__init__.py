"""A run: its specification and ID, its record, the results folder, integrity and exchange of records."""
