rule train:
    """Train one run and write its record; the numbers depend on the spec only."""
    input:
        # They are checked by digests and named after their settings: a newer file is no reason to retrain.
        lambda wildcards: ancient(JOBS.run_inputs[wildcards.run]),
    # The summary is written last and stands for the record: with thousands of runs, each further file would slow down
    # planning by seconds. Snakemake never removes an existing record, because its name depends on the settings.
    output:
        summary=update("results/runs/{run}/summary.json"),
    log:
        "results/runs/{run}/train.log",
    # Start with the longest jobs.
    priority: lambda wildcards: JOBS.resource("runtime")(wildcards, 1)
    conda:
        "../../environment.yml"
    # Several cores divide the clients of one run, on the CPU: see docs/performance.md.
    threads: 1
    resources:
        gpu=1,
        # More at each further attempt; see `resources` in config/config.yaml.
        runtime=JOBS.resource("runtime"),
        mem_mb=JOBS.resource("mem_mb"),
        disk_mb=JOBS.resource("disk_mb"),
    params:
        spec=lambda wildcards: JOBS.run_specs[wildcards.run],
    message:
        "training {wildcards.run}"
    # `exec` replaces the shell: a signal would end the shell while the run saves its state.
    shell:
        "exec python -m fltrain train - --quiet --workers {threads} <<< {params.spec:q} >> {log:q} 2>&1"
