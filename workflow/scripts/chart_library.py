"""Bundle the JavaScript of Vega-Lite."""

from pathlib import Path

from fltrain.core.files import write_text
from fltrain.core.job_log import job
from fltrain.reporting.curves import library

with job(snakemake.log[0]):
    write_text(Path(snakemake.output[0]), library())
