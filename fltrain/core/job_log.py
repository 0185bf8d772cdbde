"""Jobs of the workflow: log file and exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fltrain.core.errors import FltrainError, as_mistake

LOG = logging.getLogger("fltrain")


@contextmanager
def job(log: str) -> Iterator[None]:
    """Write the messages of the enclosed block, and the error that ends it, to a log file.

    An ``FltrainError`` or ``OSError`` ends the program with one line and its exit code, other exceptions with
    a traceback.
    """
    logging.raiseExceptions = False  # a log that cannot be written must not stop the work
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=log, filemode="w", level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        yield
    except (FltrainError, OSError) as error:
        mistake = as_mistake(error)
        LOG.error("error: %s", mistake)
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(mistake.exit_code)
    except Exception:
        LOG.exception("the job failed")
        raise
    LOG.info("done")
