"""Declarations of papers, and the plan of runs, costs and selections made from them."""
