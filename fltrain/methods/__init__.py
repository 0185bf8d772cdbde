"""Federated methods, one per module. A module dropped in here is a method that configs can name."""

from fltrain.core.registry import catalogue
from fltrain.methods.base import Method

METHODS: dict[str, type[Method]] = catalogue(Method, "fltrain.methods", "fltrain.methods")
"""Every method and plug-in by name."""
