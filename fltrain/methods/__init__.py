"""Federated methods, one per module. Add a module to this package to add a method."""

from fltrain.core.registry import catalogue
from fltrain.methods.base import Method

METHODS: dict[str, type[Method]] = catalogue(Method, package="fltrain.methods", own="methods")
"""Every method and plug-in by name."""
