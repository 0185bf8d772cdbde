"""Validate a crate against its profiles, offline: ``python validate.py CRATE.zip CONTEXT.jsonld``.

This runs in an environment of its own: roc-validator needs older packages than ``requirements.lock``. The
validator downloads the JSON-LD context of RO-Crate 1.1; here it reads the file of the library ``rocrate``.
Prints a line per violation of a requirement. The exit code is 1 if there is any.
"""

import sys
from pathlib import Path
from typing import Any

import requests
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester

PROFILES = ("ro-crate-1.1", "process-run-crate-0.5", "workflow-run-crate-0.5", "workflow-ro-crate-1.0")
CONTEXT = "https://w3id.org/ro/crate/1.1/context"

crate, context = sys.argv[1:]


def get(requester: HttpRequester, url: str, **options: Any) -> requests.Response:
    """Answer with the context; refuse any other address."""
    if url != CONTEXT:
        raise SystemExit(f"the validator asked for {url}")
    answer = requests.Response()
    answer.status_code = 200
    answer.headers["Content-Type"] = "application/ld+json"
    # The file is of RO-Crate 1.3, which gave the terms of Bioschemas other addresses than 1.1.
    text = Path(context).read_text(encoding="utf-8").replace("bioschemas.org/terms/", "bioschemas.org/")
    answer._content = text.encode()
    return answer


HttpRequester.get = get
issues = [
    f"{profile} {issue.check.identifier}: {issue.message}"
    for profile in PROFILES
    for issue in services.validate(
        services.ValidationSettings(
            rocrate_uri=crate, profile_identifier=profile, requirement_severity=models.Severity.REQUIRED
        )
    ).get_issues()
]
print(*issues, f"{len(issues)} violations of {len(PROFILES)} profiles", sep="\n")
sys.exit(bool(issues))
