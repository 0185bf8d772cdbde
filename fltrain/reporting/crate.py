"""A scale as a Workflow Run RO-Crate: workflow, records, tables and figures in one zip file. No torch.

Profiles: Workflow RO-Crate 1.0 and Workflow Run Crate 0.5, https://www.researchobject.org/workflow-run-crate.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.experiments.schema import Scale
from fltrain.runs.archive import export_records
from fltrain.runs.record import Record, Results

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
LICENCES = "https://spdx.org/licenses"
FILES = (
    *("README.md", "LICENSE", "CITATION.cff", "codemeta.json", "Makefile"),
    *("pyproject.toml", "requirements.lock", "environment.yml", "environment.post-deploy.sh"),
)
FOLDERS = ("config", "workflow", "fltrain")
FORMATS = {".csv": "text/csv", ".md": "text/markdown", ".svg": "image/svg+xml"}


def write_crate(path: Path, checkout: Path, scale: Scale, records: Sequence[Record], results: Results) -> int:
    """Write a crate of a scale; return the number of its records.

    Args:
        path: zip file to write.
        checkout: folder of the workflow.
        scale: the scale.
        records: complete records of the scale's runs.
        results: results folder, which has the scale's tables and figures.

    Raises:
        FltrainError: if ``path`` is no zip file, if a file is missing, or if an import would refuse a record.
    """
    if path.suffix != ".zip":
        raise FltrainError(f"--crate: {path}: a crate is a zip file; write {path.name.partition('.')[0]}.zip")
    made = results.root / scale.scale
    if not (made / "index.html").exists():
        raise FltrainError(f"--crate: {made} has no tables yet; run `make tables SCALE={scale.scale}`")
    for name in ("Snakefile", *FILES, *FOLDERS):
        if not (checkout / name).exists():
            raise FltrainError(f"--crate: {checkout / name} is missing; run fltrain in the project's folder")
    about = yaml.safe_load((checkout / "CITATION.cff").read_text(encoding="utf-8"))

    crate = ROCrate(version="1.1")
    crate.name = f"{about['title']}: {scale.title}"
    crate.description = f"{about['abstract']} Scale {scale.scale}: {len(records)} runs."
    crate.license = crate.add(
        _entity(crate, f"{LICENCES}/{about['license']}", "CreativeWork", about["license"])
    )
    crate.creator = crate.add(_entity(crate, "#authors", "Organization", about["authors"][0]["name"]))
    crate.root_dataset["conformsTo"] = [
        crate.add(_entity(crate, url, "CreativeWork", name, version=version))
        for url, (name, version) in PROFILES.items()
    ]
    workflow = crate.add_workflow(checkout / "Snakefile", "Snakefile", main=True, lang="snakemake")
    workflow["name"], workflow["version"] = about["title"], about["version"]
    workflow["license"], workflow["creator"] = crate.license, crate.creator
    for name in FILES:
        crate.add_file(checkout / name, name)
    folders = {name: crate.add_directory(dest_path=name, properties={"name": name}) for name in FOLDERS}
    tables = [
        crate.add_file(
            file, f"results/{file.relative_to(results.root)}", properties={"encodingFormat": media}
        )
        for file in sorted(made.rglob("*"))
        if (media := FORMATS.get(file.suffix))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "records.tar.gz"
        count = export_records(records, archive)
        packed = crate.add_file(archive, archive.name, properties={"encodingFormat": "application/gzip"})
        crate.add_action(
            workflow,
            identifier="#run",
            object=[folders["config"]],
            result=[packed, *tables],
            properties={"name": f"snakemake --config scale={scale.scale}", "agent": crate.creator},
        )
        # Zip a folder instead of the crate: validators need entries of folders. Copy the folders here: the
        # library leaves out files that have the name of another file.
        folder = Path(scratch) / "crate"
        crate.write(folder)
        for name in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(checkout / name, folder / name, ignore=ignored, dirs_exist_ok=True)
        with replacing(path) as fresh:
            shutil.copyfile(shutil.make_archive(str(folder), "zip", folder), fresh)
    return count


def _entity(crate: ROCrate, identifier: str, kind: str, name: str, **properties: str) -> ContextEntity:
    return ContextEntity(crate, identifier, {"@type": kind, "name": name, **properties})
