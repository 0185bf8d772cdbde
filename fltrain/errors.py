"""Errors that are the user's to mend: one clear message, exit code 2, no traceback."""

from __future__ import annotations


class FltrainError(ValueError):
    """A mistake in configuration, data or environment.

    The message names the setting, its value, what is allowed and what to do. (A ValueError, so that pydantic
    reports it like its own findings when it is raised during validation.)
    """

    exit_code = 2
