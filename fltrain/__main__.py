"""Entry point of the command line; it reports errors that occur while custom components are loaded."""

import sys

from fltrain.core.errors import FltrainError


def main() -> None:
    """Run the command line; a custom component that cannot be loaded ends in one line and exit code 2."""
    try:
        from fltrain import cli
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    cli.main()


if __name__ == "__main__":
    main()
