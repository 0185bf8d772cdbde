"""Building blocks that several methods share: vectors, heads, prototypes, neuron matching, noise."""
