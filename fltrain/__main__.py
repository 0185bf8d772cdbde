"""Entry point of the command line; it reports errors and Ctrl-C that occur while components are loaded."""

import sys

from fltrain.core.errors import FltrainError, Interrupted


def main() -> None:
    """Run the command line; one line reports a custom component that cannot be loaded, or an early Ctrl-C."""
    try:
        from fltrain import cli
    except FltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped by SIGINT before the start", file=sys.stderr)
        sys.exit(Interrupted.exit_code)
    cli.main()


if __name__ == "__main__":
    main()
