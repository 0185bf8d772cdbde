"""The profiles for PBS, Kubernetes and LSF, whose programs Debian lacks.

For PBS and Kubernetes, the scripts of ``PROGRAM`` answer as ``qsub``, ``qstat`` and ``kubectl`` do, and run
the job here: the profile's commands and Snakemake's job script are the real ones. LSF's is only planned.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fltrain.experiments.plan import plan
from fltrain.runs.spec import RunSpec

from ..workflow.test_workflow import Checkout, jobs_in, training

PROGRAM = '''\
#!{python}
"""Stand-in of the program with its name. A job starts at once; its end is a file in the same folder."""
import subprocess, sys
from pathlib import Path

import yaml

me, arguments = Path(sys.argv[0]), sys.argv[1:]


def submit(script, request):
    name = f"job{{len(list(me.parent.glob('job*.request')))}}"
    (me.parent / f"{{name}}.request").write_text(request)
    end = me.parent / f"{{name}}.end"
    command = f"/bin/sh '{{script}}' > '{{end}}.log' 2>&1; echo $? > '{{end}}'"
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True, **nothing)
    print(name)


def end(name):
    file = me.parent / f"{{name}}.end"
    return file.read_text().strip() if file.exists() else ""


if me.name == "qsub":
    submit(arguments[-1], " ".join(arguments))
elif me.name == "qstat":
    code = end(arguments[-1])
    print(f"    job_state = F\\n    Exit_status = {{code}}" if code else "    job_state = R")
elif arguments[0] == "create":
    manifest = sys.stdin.read()
    container = yaml.safe_load(manifest)["spec"]["template"]["spec"]["containers"][0]
    submit(container["command"][1], manifest)
elif arguments[0] == "get":
    code = end(arguments[2])
    print({{"": "/", "0": "1/"}}.get(code, "/1"))
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with the data and partitions of two runs."""
    checkout = Checkout.of_this_repository(tmp_path_factory.mktemp("profiles") / "checkout")
    code, output = checkout.snakemake("all_data", scale="single")
    assert code == 0, output
    return checkout


@pytest.mark.parametrize(
    "profile, programs, request_of_a_job",
    [
        ("pbs", ("qsub", "qstat", "qdel"), r"select=1:ncpus=1:ngpus=1:mem=\d+mb -l walltime=\d+:00 "),
        (
            "kubernetes",
            ("kubectl",),
            r'image: "an/image"(.|\n)*limits: \{memory: "\d+M", nvidia.com/gpu: "1"\}',
        ),
    ],
)
def test_jobs_are_submitted_watched_and_recorded(
    checkout: Checkout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    programs: tuple[str, ...],
    request_of_a_job: str,
) -> None:
    for name in programs:
        program = tmp_path / name
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    checkout = checkout.copy(tmp_path / "checkout")
    # Users export these variables; the tests' Snakemake starts without any of fltrain's.
    script = "workflow/profiles/kubernetes/submit.sh"
    variables = "env FLTRAIN_IMAGE=an/image FLTRAIN_VOLUME=work"
    checkout.edit("workflow/profiles/kubernetes/profile.yaml", script, f"{variables} {script}")
    code, output = checkout.snakemake(*on(profile), *records(checkout), scale="single")
    assert code == 0, output
    assert all(checkout.results.record(run).complete for run in runs_of(checkout))
    requests = [file.read_text() for file in tmp_path.glob("*.request")]
    assert len(requests) == len(runs_of(checkout))
    assert all(re.search(request_of_a_job, request) for request in requests), requests


def test_the_profile_for_lsf_plans_a_job_per_run(checkout: Checkout) -> None:
    """With the plugin of LSF, which reads the profile's options."""
    code, output = checkout.snakemake(*on("lsf"), *records(checkout), "--dry-run", scale="single")
    assert code == 0, output
    assert set(jobs_in(output)) >= training(*runs_of(checkout))


def on(profile: str) -> tuple[str, ...]:
    """Snakemake options that select a profile, for a file system that shows new files at once."""
    return ("--workflow-profile", f"workflow/profiles/{profile}", "--latency-wait", "2")


def runs_of(checkout: Checkout) -> Mapping[str, RunSpec]:
    return plan(checkout.root / "config", "single").runs


def records(checkout: Checkout) -> tuple[str, ...]:
    """Snakemake targets of the records of all runs."""
    return tuple(f"results/runs/{run}/summary.json" for run in runs_of(checkout))
