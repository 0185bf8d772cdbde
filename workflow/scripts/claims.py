"""Judge a paper's claims, sum up how its tables compare with the published ones, and write its page."""

from functools import cache
from pathlib import Path

from fltrain.core.files import write_json, write_text
from fltrain.core.job_log import job
from fltrain.experiments.claims import Claim
from fltrain.experiments.layout import ItemJob
from fltrain.experiments.published import Published, read_claims
from fltrain.reporting import paper as pages
from fltrain.reporting.claims import Judge, to_markdown
from fltrain.reporting.summary import paper_summary
from fltrain.reporting.tables.table_cell import read_csv
from fltrain.runs.record import Results

with job(snakemake.log[0]):
    paper = dict(snakemake.params.paper)
    sheets = [ItemJob.parse(sheet, "sheet") for sheet in paper.pop("sheets")]
    about = paper.pop("about")
    claims = [Claim.parse(claim, "claim") for claim in paper.pop("claims")]
    published = {Path(path).name: Path(path) for path in snakemake.input.published}
    statements = [statement for path in snakemake.input.claims for statement in read_claims(Path(path))]
    runs = Results(Path("results")).record

    @cache
    def read(name: str | None) -> Published:
        return Published.read(published[name] if name else None)

    outputs = snakemake.output
    tables = Path(outputs.summary).parent
    cells = {sheet.id: read_csv(tables / f"{sheet.name}.csv") for sheet in sheets if sheet.table}
    judge = Judge(sheets, runs, lambda sheet: read(sheet.reported), paper["reduced"], cells)
    judged = judge.judge(claims, statements)
    write_text(Path(outputs.csv), judged.to_csv(index=False))
    write_text(Path(outputs.md), to_markdown(paper["title"], sheets, judged))
    summary = paper_summary(paper, sheets, judged, cells, claims)
    write_json(Path(outputs.summary), summary)
    write_text(Path(outputs.page), pages.page(summary, about, sheets, cells, tables))
