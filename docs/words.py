"""Count the words of the documentation that are written by hand: ``python docs/words.py``.

Generated reference does not count: the pages on configuration and commands, the tables of the other generated
pages and their details, and everything below the line on pages that ``docs/generate.py`` completes. Formulas,
examples and tables written by hand count.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parent
BUDGET = 45_000
REFERENCE = {"commands.md", "configuration.md"}
"""Pages without hand-written text."""
TABLES = {"results.md", "artifact.md", "methods/README.md"}
"""Pages whose tables, details and conclusions are generated."""
GENERATED = re.compile(r"\||> |\* \*[^*]")
"""Begin of a line of them."""
MARK = "<!-- docs/generate.py writes the rest of this page"
TABLE = re.compile(r"<!-- Table by docs/generate.py.*\n\n(\|.*\n)*")


def words(page: Path) -> int:
    """Words of a page that are written by hand."""
    name, text = page.relative_to(PAGES).as_posix(), page.read_text(encoding="utf-8").partition(MARK)[0]
    if name in REFERENCE:
        return 0
    text = TABLE.sub("", text)
    lines = (line for line in text.splitlines() if not (name in TABLES and GENERATED.match(line)))
    return sum(len(line.split()) for line in lines)


def by_page() -> dict[str, int]:
    """Page -> words written by hand, the longest page first."""
    counts = {page.relative_to(PAGES).as_posix(): words(page) for page in PAGES.rglob("*.md")}
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


if __name__ == "__main__":
    for name, count in by_page().items():
        print(f"{count:6,}  {name}")
    print(f"{sum(by_page().values()):6,}  of at most {BUDGET:,}")
