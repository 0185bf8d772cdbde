"""Refuse wording that is hard to read: run by `make lint` over code comments, messages and documentation."""

import re
import subprocess
import sys
from pathlib import Path

REMEDY = {
    r'"""(What|Who|Whether|How|Where|Whose)\b': "begin a docstring with a noun phrase or an imperative",
    r"^#+ (What|Who|Whether) \w+ (?!.*\?)": "use a task or a noun phrase as heading",
    r"\b[Ww]hoever\b": "address the reader: 'if you ...'",
    r"\bof (one|its)'s own\b|\bof one's own\b": "write 'custom' or 'your own'",
    r"\bof before\b": "write 'earlier' or 'previous'",
    r"\b(so|as) many (as )?(bytes|steps|rounds|clients|seeds|images|runs|times)\b": "name the number",
    r"\bbut for\b": "write 'except'",
    r"\bbeside (the|its|them|it|weights)\b": "write 'in addition to' or 'next to'",
    r"\bprocessor (seconds|time)\b": "write 'CPU time'",
    r"\bon the clock\b": "write 'wall time'",
    r"\b(is|are|be) asked for\b": "name the actor: 'the user requests ...'",
    r"\b[Ww]ho (trains|waits|has)\b": "code is not a person",
    r"\b[Ww]hat (clients|runs|methods|was|they|it|is) \w+": "replace the noun clause by a noun",
    r"\b(is|are|be) told\b": "code is not a person",
    r"\b[Tt]hose who\b": "address the reader: 'if you ...'",
    r"(?<!here )\bis no (number|chain|condition|list|mapping)\b": "write 'is not a ...'",
    r"\b(is|are) sought\b": "name the actor: 'the attack searches for ...'",
    r"\b(keep|keeps|kept|let|lets) what$|\bwhat clients$": "replace the noun clause by a noun",
    r"\b(record|file|module|method|network|engine)s? (says?|knows?|wants?)\b": "code is not a person",
    r"\bfor (one|found|here|how|kept|own|said|shown|told|what|whole) in\b"
    r"|^\s*(one|found|here|how|kept|own|said|shown|told|what|whole) = ": "name a variable by its content",
    r"\bto be looked\b|\blooked into\b": "write 'searched' or 'analysed'",
}
"""Pattern -> remedy."""

PLAIN = {r"\b([Tt]hat|[Tt]hose) of\b": "name the thing again"}
"""The same for ``PLAIN_PLACES``."""

PLAIN_PLACES = (
    *("docs", "workflow", "Snakefile", "benchmarks", "tests", "published/README.md"),
    *(f"fltrain/{part}" for part in ("analysis", "cli", "core", "data", "engine", "experiments", "methods")),
    *(f"fltrain/{part}" for part in ("metrics", "models", "runs", "runtime", "tracking")),
)
PUBLISHED = ("docs/artifact.md", "docs/configuration.md", "docs/results.md")
"""Generated pages with captions and claims from ``config``, which our tables also print."""
MARK = "<!-- docs/generate.py writes the rest of this page from config/"
"""Begin of such texts on other pages."""

UNCHECKED = (Path("docs/prose.py"), Path("published/controls_flower.py"))
"""This file, and a script that stays as it ran."""
CHECKED = ("*.py", "*.md", "*.smk", "*.yaml", "Makefile", "Snakefile", ".ci/run")


def is_plain(path: Path) -> bool:
    """Return True if ``PLAIN`` applies to a file."""
    return path.as_posix() not in PUBLISHED and any(path.is_relative_to(place) for place in PLAIN_PLACES)


def main() -> int:
    """Print each hit as ``file:line: remedy`` and return the exit code.

    Arguments of the command are paths or folders to check (default: the whole repository).
    """
    listed = subprocess.run(["git", "ls-files", *CHECKED], capture_output=True, text=True, check=True)
    chosen = tuple(sys.argv[1:])
    hits = 0
    for name in listed.stdout.splitlines():
        path = Path(name)
        if chosen and not any(path.is_relative_to(place) for place in chosen):
            continue
        if not path.is_file() or path.is_symlink() or path in UNCHECKED:
            continue
        patterns = {**REMEDY, **(PLAIN if is_plain(path) else {})}
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.startswith(MARK):
                patterns = REMEDY
            for pattern, remedy in patterns.items():
                if match := re.search(pattern, line):
                    hits += 1
                    print(f"{name}:{number}: {match.group(0).strip()!r}: {remedy}")
    return hits > 0


if __name__ == "__main__":
    sys.exit(main())
