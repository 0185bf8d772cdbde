"""Networks: declared in ``catalogue`` (no torch), built by ``build``."""
