"""The program: the command line, once everything that it knows by name could be loaded."""

import sys

from fltrain.core.errors import FltrainError


def main() -> None:
    """Run the command line. A file of one's own that cannot be loaded ends in one line, too."""
    try:
        from fltrain import cli
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    cli.main()


if __name__ == "__main__":
    main()
