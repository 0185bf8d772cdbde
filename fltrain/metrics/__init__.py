"""Measurements on updates and features."""
