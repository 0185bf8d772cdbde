"""Networks, flat parameter vectors and feedback layers."""
