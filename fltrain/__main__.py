"""Entry point of the command line; also reports errors and Ctrl-C that occur while components are loaded."""

from __future__ import annotations

import re
import sys
from io import TextIOWrapper

from typer.exceptions import TyperException

from fltrain.core.errors import FltrainError, Interrupted, Stopped, as_mistake


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        from fltrain import cli  # it loads all components

        sys.exit(cli.app(prog_name="fltrain", standalone_mode=False))
    except TyperException as error:
        text, code = _usage_error(error), error.exit_code
    except (FltrainError, OSError) as error:
        mistake = as_mistake(error)
        text, code = f"error: {mistake}", mistake.exit_code
    except Stopped as stopped:
        text, code = str(stopped), stopped.exit_code
    except KeyboardInterrupt:  # a command ends with this code, too
        text, code = "stopped by SIGINT before the start", Interrupted.exit_code
    print(text, file=sys.stderr)
    sys.exit(code)


def _usage_error(error: TyperException) -> str:
    """Return one line on a wrong use of a command, or the help of a group without a command."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage: "):
        return message
    command = context.command_path if context else "fltrain"
    message = message.rstrip(".").replace("Value error, ", "")
    message = re.sub(r" \(Possible options: (.*)\)|\. Did you mean (.*)\?", r"; did you mean \1\2?", message)
    if command == "fltrain train" and message.startswith("No such option"):
        message = message.partition(";")[0]
        setting = _setting(message.rpartition(" ")[2])
        message += f"; --set {setting} changes a setting, and snakemake --cores N trains N runs at a time"
    return f"error: {message[:1].lower()}{message[1:]} (see {command} --help)"


def _setting(option: str) -> str:
    """Return the setting that an unknown option seems to mean, with its value from the command line."""
    from fltrain.runs.spec import RunSpec

    key = option.lstrip("-").replace("-", "_")
    if key.partition(".")[0] not in RunSpec.model_fields:
        return "KEY=VALUE"
    words = [word for argument in sys.argv for word in argument.split("=", 1)]
    after = [*words[words.index(option) + 1 :], "-"][0]
    return f"{key}={'VALUE' if after.startswith('-') else after}"


if __name__ == "__main__":
    main()
