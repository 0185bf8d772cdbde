from fltrain.reporting.overview.listing import Listing


rule index:
    """The overview of the scale: papers, tables, figures, verdicts, claims, costs, and a page of all runs.

    It does not wait for MLflow, which may not be available.
    """
    input:
        [output for item in PLAN.items for output in item_outputs(item)],
        [f"{OUT}/{paper}/summary.json" for paper in PAPERS],
        f"{OUT}/runs.csv",
    output:
        index=f"{OUT}/index.html",
        runs=f"{OUT}/runs.html",
    log:
        f"results/logs/{SCALE}/index.log",
    benchmark:
        f"results/benchmarks/{SCALE}/index.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        listing=Listing.of(PLAN).model_dump_json(),
    message:
        "writing the overview"
    script:
        "../scripts/index.py"
