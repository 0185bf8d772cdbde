"""Version of the rule and of the code that make tables, figures, claims and pages. No torch.

Snakemake makes them again when it changes, and ``fltrain status`` names pages of another version.
"""

from __future__ import annotations

import datetime
import hashlib
from functools import cache
from glob import glob
from pathlib import Path

RULE_VERSION = 2
"""Increase it, and the date, whenever a verdict could change. Tables of another version are made again."""

RULE_DATE = datetime.date(2026, 11, 26)
"""Day of this version."""

FIRST_RULE = datetime.date(2026, 11, 23)
"""Day of the first version. Verdicts on runs that had been seen by then are exploratory.

Items name the cells whose verdict has changed with a later version (``rejudged``); they are exploratory, too.
"""

_PACKAGE = Path(__file__).parents[1]
_LAYERS = ("core", "runs", "experiments", "analysis", "reporting")
"""Layers of the package that decide what pages show; the others prepare data, train, and print."""


@cache
def reporting_version() -> str:
    """Return the version of the rule with a digest of the code that decides pages, and of the templates."""
    digest = hashlib.sha256()
    for pattern in (*(f"{layer}/**/*.py" for layer in _LAYERS), "reporting/templates/*.*[a-z]"):
        for name in sorted(glob(pattern, root_dir=_PACKAGE, recursive=True)):  # no hidden files, no backups
            digest.update(f"{name}\0".encode() + (_PACKAGE / name).read_bytes())
    return f"{RULE_VERSION}-{digest.hexdigest()[:12]}"


def outdated_pages(folder: Path) -> list[str]:
    """Return the pages of a scale that another version has made, for example ``flfa/table1.html``."""
    pages = [*folder.glob("*.html"), *folder.glob("*/*.html")]
    ours = (page for page in pages if page.name != "report.html")  # Snakemake's report
    mark = f'content="{reporting_version()}"'.encode()
    return sorted(str(page.relative_to(folder)) for page in ours if mark not in page.read_bytes()[:2000])
