from fltrain.reporting.listing import Listing


rule index:
    """Write the front page of the scale, with a card for each paper, and a page of all runs.

    It does not depend on the export to MLflow, which may fail.
    """
    input:
        JOBS.outputs(),
        [f"{OUT}/{paper}/summary.json" for paper in JOBS.papers],
    output:
        index=f"{OUT}/index.html",
        runs=f"{OUT}/runs.html",
        verdicts=f"{OUT}/verdicts.csv",
    log:
        f"results/logs/{SCALE}/index.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # A function, because Snakemake takes braces in texts for wildcards.
        listing=lambda wildcards: Listing.of(JOBS.plan).model_dump_json(),
        reporting=REPORTING,
    message:
        "writing the overview"
    script:
        "../scripts/index.py"
