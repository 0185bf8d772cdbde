"""Bring the raw files of a dataset to this machine, or state where they are."""

from __future__ import annotations

import secrets
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.data.download import OFFLINE, fetch, offline_folder
from fltrain.data.registry import DatasetEntry
from fltrain.data.unpack import ARCHIVES, unpack


def obtain(name: str, entry: DatasetEntry, downloads: Path, quiet: bool = False) -> Path:
    """Return the folder (or file) with the raw files of a dataset.

    Files with an address end up in ``downloads/<name>``; files from the offline folder are linked there.
    Other datasets are searched at the entry's ``path`` and in the offline folder, as a folder or an archive
    with the name of the dataset.

    Raises:
        FltrainError: if the files cannot be found or downloaded; the message tells how to get them.
    """
    folder = downloads / name
    if entry.files:
        for file in entry.files:
            found = fetch(file, folder, name, quiet=quiet)
            if found.parent != folder:
                folder.mkdir(parents=True, exist_ok=True)
                # Renamed into place: another job may create it at the same time, or an old link may dangle.
                link = folder / f".{file.name}.{secrets.token_hex(4)}.part"
                link.symlink_to(found.resolve())
                link.replace(folder / file.name)
        return folder
    if entry.own_copy is not None:
        return entry.own_copy
    if not entry.reader.needs_files:
        return folder
    if offline := offline_folder():
        brought = offline / name
        if brought.exists():
            return brought
        for ending in ARCHIVES:
            archive = brought.with_name(brought.name + ending)
            if archive.exists():
                return unpack(archive, folder)
    raise FltrainError(
        f"dataset {name!r} cannot be downloaded freely. {entry.obtain} Or put it into the folder that "
        f"{OFFLINE} names, as {name}/ or {name}.zip"
    )


def whereabouts(name: str, entry: DatasetEntry, downloads: Path) -> str:
    """Return where the raw files are, or where they would come from; nothing is downloaded."""
    if not entry.reader.needs_files:
        return "ships with a dependency"
    if entry.own_copy is not None:
        return f"{entry.own_copy}{'' if entry.own_copy.exists() else ' (missing)'}"
    if entry.files and all((downloads / name / file.name).exists() for file in entry.files):
        return str(downloads / name)
    if root := offline_folder():
        places = [root / name, root]
        if entry.files and any(all((place / file.name).exists() for file in entry.files) for place in places):
            return str(root)
        if not entry.files and any((root / f"{name}{ending}").exists() for ending in ("", *ARCHIVES)):
            return str(root)
    urls = [url for file in entry.files for url in file.urls]
    return f"download from {urls[0].split('/')[2]}" if urls else "by hand"
