"""Assemble a table."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.experiments.layout import Sheet
from fltrain.reporting import curves
from fltrain.reporting.tables import write as tables
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    fields = {name: value for name, value in snakemake.params.items() if name != "reporting"}
    sheet = Sheet.parse(fields, "sheet")
    published = next(map(Path, snakemake.input.published), None)
    outputs = {form: Path(path) for form, path in snakemake.output.items()}
    anomalies = Path(snakemake.input.anomalies)
    page, runs = outputs.pop("curves"), Results(Path("results")).record
    tables.write(sheet, runs, published, outputs, anomalies)
    curves.write(sheet, runs, Path(snakemake.input.library[0]), page)
