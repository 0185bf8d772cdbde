# Whoever deletes the database has it made again.
if workflow.is_main_process and not RESULTS.tracking.exists():
    Path(f"{OUT}/tracked.json").unlink(missing_ok=True)


rule track:
    """Export runs, tables and figures to MLflow: one process writes, exporting again changes nothing."""
    input:
        records_of(PLAN.runs),
        [output for item in PLAN.items for output in item_outputs(item)],
    output:
        f"{OUT}/tracked.json",
    log:
        f"results/logs/{SCALE}/track.log",
    benchmark:
        f"results/benchmarks/{SCALE}/track.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        memberships=MEMBERSHIPS,
        pages=[[item.id, item.item.title, item.item.caption] for item in PLAN.items],
    message:
        "exporting runs to MLflow"
    script:
        "../scripts/track.py"
