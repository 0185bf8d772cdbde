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
    # A run that was killed goes on from its last checkpoint.
    retries: 2
    conda:
        "../../environment.yml"
    threads: 1
    params:
        spec=spec_of,
    message:
        "training {wildcards.run}"
    shell:
        "printf '%s' {params.spec:q} | python -m fltrain train - --quiet --threads {threads} 2>> {log:q}"
