"""Kill random processes of the workflow repeatedly, and compare its results with an undisturbed run.

Every few seconds one of the processes that work on the scale is killed: Snakemake itself, a job or its shell,
or an orphan of these. When Snakemake ends, it is unlocked and started again, as a user would do, until all
results exist. Then all records, and the numbers of all tables and figures except measured times, must equal
an undisturbed run's, byte for byte; ``fltrain verify`` must find no problem, and MLflow must have every run
once.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from fltrain.runs.record import MODELS_FILE

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "workflow", "config", "profiles")
RECORD = ("spec.json", "metrics.jsonl", "summary.json", MODELS_FILE)
# Runs are short here: save after every round, because an interval in seconds would never end.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "FLTRAIN_CHECKPOINT_SECONDS": "0"}
TIMED = (b"seconds", b"time", b"hours")
"""Words in the head or a row of a table that shows measured times."""


class Workplace:
    """A folder in which the workflow writes, with links to its sources."""

    def __init__(self, root: Path, scale: str, cores: int) -> None:
        self.root = root
        self.results = root / "results"
        root.mkdir(parents=True)
        for part in PARTS:
            (root / part).symlink_to(ROOT / part)
        snakemake = [sys.executable, "-m", "snakemake"]
        self.command = [*snakemake, "--cores", str(cores), "--config", f"scale={scale}"]
        self.log = root / "snakemake.log"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Snakemake; its output goes to the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.command, *arguments], cwd=self.root, env=ENVIRONMENT, stdout=log, stderr=log
            )

    def fltrain(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and last line of a command of fltrain."""
        command = [sys.executable, "-m", "fltrain", *arguments]
        done = subprocess.run(command, cwd=self.root, env=ENVIRONMENT, capture_output=True, text=True)
        return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]

    def processes(self) -> list[psutil.Process]:
        """Return all processes that run in this folder."""
        processes = []
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()) == self.root and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return processes

    def files(self) -> dict[str, bytes]:
        """Return the files that must not depend on interruptions, with their content."""
        paths = [path for name in RECORD for path in self.results.glob(f"runs/*/{name}")]
        paths += self.results.glob("*/*/*.csv")
        return {str(path.relative_to(self.results)): timeless(path) for path in paths}


def timeless(path: Path) -> bytes:
    """Return the content of a file; of a table without its times, which differ in every execution."""
    content = path.read_bytes()
    if path.suffix != ".csv":
        return content
    head, *rows = content.splitlines()
    if any(word in head for word in TIMED):
        return head
    return b"\n".join([head, *(row for row in rows if not any(word in row for word in TIMED))])


def soak(place: Workplace, kills: int, interval: float, draw: random.Random) -> tuple[int, int]:
    """Run the workflow to its end with at most ``kills`` kills; return the numbers of kills and of starts."""
    killed = starts = 0
    while True:
        starts += 1
        running = place.start()
        while running.poll() is None:
            if killed >= kills:
                running.wait()
                break
            time.sleep(draw.uniform(0, 2 * interval))
            victims = place.processes()
            if victims and running.poll() is None:
                victim = draw.choice(victims)
                try:
                    words = " ".join(victim.cmdline())
                    victim.kill()
                except psutil.NoSuchProcess:
                    continue
                killed += 1
                print(f"{killed:4d}: {words[:100]}", flush=True)
        if running.returncode == 0:
            return killed, starts
        if starts > kills + 20:
            raise SystemExit(f"the workflow does not end; see {place.log}")
        place.start("--unlock").wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="demo")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--kills", type=int, default=100, help="how many, unless everything is made before")
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if not given")
    options = parser.parse_args()

    folder = (options.folder or Path(tempfile.mkdtemp(prefix="soak-"))).resolve()
    reference, disturbed = (
        Workplace(folder / name, options.scale, options.cores) for name in ("whole", "disturbed")
    )
    started = time.monotonic()
    if reference.start().wait():
        raise SystemExit(f"the undisturbed run failed; see {reference.log}")
    undisturbed = time.monotonic() - started
    started = time.monotonic()
    killed, starts = soak(disturbed, options.kills, options.every, random.Random(options.seed))
    seconds = time.monotonic() - started

    expected, actual = reference.files(), disturbed.files()
    names = sorted(expected.keys() | actual.keys())
    different = [name for name in names if expected.get(name) != actual.get(name)]
    failed, verified = disturbed.fltrain("verify")
    _, tracked = disturbed.fltrain("track", "--scale", options.scale)
    unchanged = re.search(r": \d+ unchanged$", tracked) is not None
    print(f"{killed} kills, {starts} starts, {seconds:.0f} s instead of {undisturbed:.0f} s")
    print(f"{len(expected)} files compared, {len(different)} differ")
    print(verified, tracked, *different, sep="\n")
    if different or failed or not unchanged:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
