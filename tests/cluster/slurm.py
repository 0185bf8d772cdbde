"""A single-node SLURM on this machine for tests: fake cores, memory and GPUs, no accounting."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={state}/munge
SlurmUser=root
SlurmdUser=root
MinJobAge=3600
SlurmdTimeout=10
KillWait=15
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=200000 Gres=gpu:{gpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""
# Any device file will do: it is never opened.
GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.2) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not seen within {seconds} s"
        time.sleep(pause)


def command(*arguments: str) -> str:
    """Run a command and return its output; raise an error if it fails."""
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{' '.join(arguments)}: {result.stdout}{result.stderr}"
    return result.stdout


def processes(name: str) -> list[int]:
    """IDs of the processes with this name."""
    process_ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text().strip() == name:
                process_ids.append(int(folder.name))
    return process_ids


def in_jobs() -> Iterator[tuple[int, dict[str, str]]]:
    """Processes inside jobs, with their environment variables."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            entries = (folder / "environ").read_text(errors="replace").split("\0")
            environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            if "SLURM_JOB_ID" in environment:
                yield int(folder.name), environment


def kill_jobs() -> None:
    """Kill all processes in jobs, also those that start meanwhile."""
    process_ids = [*processes("slurmstepd"), *(process for process, _ in in_jobs())]
    while process_ids:
        for process in process_ids:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
        process_ids = [process for process, _ in in_jobs()]


class Slurm:
    """SLURM's daemons as child processes, with their files below ``folder``.

    Commands inside jobs read their configuration from /etc/slurm: the previous files are restored at the end.
    """

    ETC = Path("/etc/slurm")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def started(self) -> Iterator["Slurm"]:
        """Start the daemons, and stop them at the end."""
        for name in ("slurmctld", "slurmd"):
            assert not processes(name), f"{name} runs already: these tests start their own"
        assert "SLURM_JOB_ID" not in os.environ, "do not run these tests inside a SLURM job"
        old_files = {name: self._replaced(name, text) for name, text in self._files().items()}
        try:
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D", "-c")
            self._start("slurmd", "slurmd", "-D")
            wait_until(lambda: "idle" in self.node_state(), 30)
            yield self
        finally:
            for name in reversed(list(self.daemons)):
                daemon = self.daemons.pop(name)
                daemon.terminate()
                daemon.wait(60)
            kill_jobs()
            for name, text in old_files.items():
                self._replaced(name, text)

    def _files(self) -> dict[str, str]:
        host = socket.gethostname().split(".")[0]
        main = CONFIGURATION.format(host=host, state=self.folder, gpus=len(GPUS))
        devices = [f"NodeName={host} Name=gpu File={file}\n" for file in GPUS]
        return {"slurm.conf": main, "gres.conf": "".join(devices)}

    def _replaced(self, name: str, text: str | None) -> str | None:
        file = self.ETC / name
        before = file.read_text() if file.exists() else None
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return before

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(arguments, stdout=out, stderr=out, start_new_session=True)

    def _start_munge(self) -> None:
        """Start munge with a new key."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        files = {"key-file": key, "seed-file": "munge.seed", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        self._start("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge", *options)
        wait_until((self.folder / "munge").exists, 20)

    def node_state(self) -> str:
        result = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
        return result.stdout.strip()

    def jobs(self) -> dict[str, dict[str, str]]:
        """Fields of ``scontrol show job``, by job ID."""
        output = command("scontrol", "--oneliner", "show", "job")
        jobs = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in output.splitlines() if "JobId=" in line]
        return {job["JobId"]: job for job in jobs}

    def jobs_of(self, folder: Path) -> dict[str, dict[str, str]]:
        """The jobs submitted from a folder, in order of submission."""
        jobs = self.jobs()
        return {name: jobs[name] for name in sorted(jobs, key=int) if jobs[name]["WorkDir"] == str(folder)}

    def started_at(self, job: str) -> float:
        """Start time of a job, in seconds since the epoch."""
        return time.mktime(time.strptime(self.jobs()[job]["StartTime"], "%Y-%m-%dT%H:%M:%S"))
