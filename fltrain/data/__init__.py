"""Datasets: registry, download, readers, prepared images, partitions."""
