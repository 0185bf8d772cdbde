"""Jobs of the workflow: where their messages go, and how they end if something is wrong."""

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
    """Send messages of the enclosed work to a log file; whatever ends it is written there, too.

    A mistake of the user's, or a fault of the system, ends the program with one line and its exit code,
    anything else with a traceback.
    """
    logging.raiseExceptions = False  # a log that cannot be written shall not disturb the work
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
