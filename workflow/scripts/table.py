"""Assemble a table."""

from pathlib import Path

from fltrain.experiments import Sheet
from fltrain.records import Results
from fltrain.reporting import tables

sheet = Sheet.parse(dict(snakemake.params.items()), "sheet")  # noqa: F821
published = next(map(Path, snakemake.input.published), None)  # noqa: F821
outputs = {form: Path(path) for form, path in snakemake.output.items()}  # noqa: F821
tables.write(sheet, Results(Path("results")).record, published, outputs)
