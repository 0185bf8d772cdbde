"""Draw a figure."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.experiments.layout import Sheet
from fltrain.reporting.figures import draw as figures
from fltrain.runs.record import Results

with job(snakemake.log[0]):  # noqa: F821
    sheet = Sheet.parse(dict(snakemake.params.items()), "sheet")  # noqa: F821
    figures.write(sheet, Results(Path("results")), [Path(path) for path in snakemake.output])  # noqa: F821
