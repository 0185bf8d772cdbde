rule train:
    """Train one run and write its record. The spec is the only thing that its numbers depend on."""
    input:
        unpack(run_inputs),
    # The summary is written last and stands for the record: of thousands of runs, each further file that is declared
    # makes planning slower by seconds.
    output:
        summary="results/runs/{run}/summary.json",
    log:
        "results/runs/{run}/train.log",
    conda:
        "../../environment.yml"
    threads: 1
    params:
        spec=spec_of,
    message:
        "training {wildcards.run}"
    shell:
        "printf '%s' {params.spec:q} | python -m fltrain train - --again --quiet --threads {threads} 2>> {log:q}"
