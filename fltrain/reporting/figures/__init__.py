"""Figures and the numbers behind them."""
