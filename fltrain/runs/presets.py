"""Presets: defaults that go together, under one name. ``preset: NAME`` in a run stands for them.

They fill in what a run does not say itself, and leave no trace in its name: a run that spells the same
settings out is the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fltrain.core.config import misread, suggest


@dataclass(frozen=True)
class Default:
    """Default of a setting; with ``of``, some settings of the component of that name, if it is chosen."""

    setting: str
    value: Any
    of: str | None = None

    def fill(self, run: dict[str, Any]) -> None:
        """Put it where the run says nothing."""
        if self.of is None:
            run.setdefault(self.setting, self.value)
            return
        chosen = run.get(self.setting)
        component = {"name": chosen} if isinstance(chosen, str) else chosen
        if isinstance(component, Mapping) and component.get("name") == self.of:
            run[self.setting] = {**self.value, **component}


PRESETS: dict[str, tuple[Default, ...]] = {
    # What the published numbers of FedFCD and its baselines were most likely made with (PFLlib): classes in
    # contiguous blocks, BatchNorm statistics that stay with the clients, torchvision's ResNet-18.
    "paper_suite": (
        Default("partition", {"assignment": "contiguous"}, of="pathological"),
        Default("batchnorm", "local"),
        Default("model", {"stem": "imagenet", "initialisation": "he"}, of="resnet18"),
    ),
}


def expand(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with those of its preset, if it names one.

    Raises:
        ValueError: if there is no such preset.
    """
    spelled_out = dict(run)
    name = spelled_out.pop("preset", None)
    if name is None:
        return spelled_out
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(
            f"preset: unknown {name!r}{suggest(name, PRESETS)}{misread(name)} (known: {', '.join(PRESETS)})"
        )
    for default in PRESETS[name]:
        default.fill(spelled_out)
    return spelled_out
