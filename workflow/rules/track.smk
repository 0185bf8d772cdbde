# Whoever deletes the database has it made again.
if workflow.is_main_process and not RESULTS.tracking.exists():
    Path(f"{OUT}/tracked.json").unlink(missing_ok=True)


rule track:
    """Export all runs to MLflow: one process writes, and exporting again changes nothing."""
    input:
        records_of(PLAN.runs),
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
        memberships=MEMBERSHIPS,
    message:
        "exporting runs to MLflow"
    script:
        "../scripts/track.py"
