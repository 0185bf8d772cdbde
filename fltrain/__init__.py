"""Federated-learning algorithms and the machinery that reproduces papers about them."""

__version__ = "0.1.0"
