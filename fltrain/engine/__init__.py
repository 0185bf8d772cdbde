"""The engine: rounds, local training, aggregation, evaluation. It owns every loop."""

from typing import Literal

ExecutorName = Literal["auto", "sequential", "vectorized", "cuda_graph", "vectorized_cuda_graph"]
"""Names of executors, see ``fltrain.engine.executors``; defined here, so that planning needs no torch."""
