"""Draw a figure."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.experiments.layout import Sheet
from fltrain.reporting import curves
from fltrain.reporting.figures import draw as figures
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    fields = {name: value for name, value in snakemake.params.items() if name != "reporting"}
    sheet = Sheet.parse(fields, "sheet")
    outputs, results = {form: Path(path) for form, path in snakemake.output.items()}, Results(Path("results"))
    page = outputs.pop("curves")
    figures.write(sheet, results, outputs.values())
    curves.write(sheet, results.record, Path(snakemake.input.library[0]), page)
