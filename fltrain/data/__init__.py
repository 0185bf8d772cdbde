"""Data sets, their prepared form on disk, and their partition over clients."""
