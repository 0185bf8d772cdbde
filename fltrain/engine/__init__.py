"""The engine: rounds, local training, aggregation, evaluation. It owns every loop."""

from typing import Literal

ExecutorName = Literal["auto", "loop", "graph", "stack"]
"""How local steps run, see ``fltrain.engine.executors``. It stands here so that planning needs no torch."""
