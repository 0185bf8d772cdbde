"""Draw a figure."""

from pathlib import Path

from fltrain.job import job
from fltrain.records import Results
from fltrain.reporting import figures
from fltrain.reporting.layout import Sheet

with job(snakemake.log[0]):  # noqa: F821
    sheet = Sheet.parse(dict(snakemake.params.items()), "sheet")  # noqa: F821
    figures.write(sheet, Results(Path("results")), [Path(path) for path in snakemake.output])  # noqa: F821
