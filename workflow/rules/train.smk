rule train:
    """Train one run and write its record. The spec is the only thing that its numbers depend on."""
    input:
        unpack(run_inputs),
    # The summary is written last and stands for the record: of thousands of runs, each further file that is declared
    # makes planning slower by seconds. A record that is there is never removed to be made again, whatever Snakemake
    # finds to have changed: what its numbers depend on is in its name.
    output:
        summary=update("results/runs/{run}/summary.json"),
    log:
        "results/runs/{run}/train.log",
    # The longest first, or they would be waited for in the end.
    priority: run_priority
    # A run that was killed goes on from its last checkpoint. The process that started the workflow starts it again, not
    # the processes that a job on a cluster consists of, in which the same rules are read.
    retries: 2 if workflow.is_main_process else 0
    conda:
        "../../environment.yml"
    threads: 1
    # One GPU each, where the profile counts them. What is asked for is no reason to train again.
    resources:
        gpu=1,
        runtime=run_demand("minutes"),
        mem_mb=run_demand("memory_mb"),
        vram_mb=run_demand("vram_mb"),
        disk_mb=run_demand("disk_mb"),
    params:
        spec=spec_of,
    message:
        "training {wildcards.run}"
    # In place of the shell, which a signal would end while the state of the run is being saved.
    shell:
        "exec python -m fltrain train - --quiet --threads {threads} --vram-mb {resources.vram_mb}"
        " <<< {params.spec:q} 2>> {log:q}"
