"""The engine: rounds, local training, aggregation, evaluation. It owns every loop."""

from typing import Literal

ExecutorName = Literal["auto", "loop", "graph", "stack"]
"""How local steps are run: see ``fltrain.engine.executors``. Here, for those who name one without torch."""
