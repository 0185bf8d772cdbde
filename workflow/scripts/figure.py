"""Draw a figure."""

from pathlib import Path

from fltrain.experiments import Sheet
from fltrain.records import Results
from fltrain.reporting import figures

sheet = Sheet.parse(dict(snakemake.params.items()), "sheet")  # noqa: F821
figures.write(sheet, Results(Path("results")).record, [Path(path) for path in snakemake.output])  # noqa: F821
