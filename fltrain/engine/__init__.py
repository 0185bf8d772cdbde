"""The engine: rounds, local training, aggregation, evaluation. It owns every loop."""
