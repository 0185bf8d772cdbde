"""``python -m fltrain``: the command line."""

from fltrain.cli import main

main()
