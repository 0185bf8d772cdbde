"""Make a table or figure, and the page of its curves."""

from pathlib import Path

from fltrain.core.job_log import job
from fltrain.experiments.layout import Sheet
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    from fltrain.reporting import curves

    sheet = Sheet.parse(snakemake.params.item, "item")
    results, inputs = Results(Path("results")), snakemake.input
    outputs = {form: Path(path) for form, path in snakemake.output.items()}
    page = outputs.pop("curves")
    if sheet.table:
        from fltrain.reporting.tables import write as tables

        published = next(map(Path, inputs.published), None)
        tables.write(sheet, results.record, published, outputs, Path(inputs.anomalies[0]))
    else:
        from fltrain.reporting.figures import draw as figures  # matplotlib takes a second to import

        figures.write(sheet, results, outputs.values())
    curves.write(sheet, results.record, Path(inputs.library[0]), page)
