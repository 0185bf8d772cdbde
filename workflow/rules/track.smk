from fltrain.tracking.export import pages_of


rule track:
    """Export runs, tables and figures to MLflow in one process; exporting again changes nothing."""
    input:
        JOBS.outputs(),  # made after all runs
    output:
        f"{OUT}/tracked.json",
    log:
        f"results/logs/{SCALE}/track.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        scale=SCALE,
        # Changes if the database was deleted, so that this rule runs again.
        database=JOBS.database,
        memberships=JOBS.memberships,
        pages=[list(page) for page in pages_of(JOBS.plan)],
    message:
        "exporting runs to MLflow"
    script:
        "../scripts/track.py"
