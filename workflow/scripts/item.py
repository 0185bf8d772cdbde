"""Make a table or figure."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.experiments.layout import ItemJob
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    sheet = ItemJob.parse(snakemake.params.item, "item")
    results, inputs = Results(Path("results")), snakemake.input
    outputs = {form: Path(path) for form, path in snakemake.output.items()}
    if sheet.table:
        from fltrain.reporting.tables import write as tables

        published = next(map(Path, inputs.published), None)
        tables.write(sheet, results.record, published, outputs)
    else:
        from fltrain.reporting.figures import draw as figures  # matplotlib takes a second to import

        figures.save(*figures.draw(sheet, results), outputs.values())
