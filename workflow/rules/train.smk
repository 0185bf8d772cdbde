rule train:
    """Train one run and write its record. The spec is the only thing that its numbers depend on."""
    input:
        unpack(run_inputs),
    output:
        spec="results/runs/{run}/spec.json",
        metrics="results/runs/{run}/metrics.jsonl",
        summary="results/runs/{run}/summary.json",
        costs="results/runs/{run}/costs.json",
        provenance="results/runs/{run}/provenance.json",
    log:
        "results/runs/{run}/train.log",
    benchmark:
        "results/benchmarks/train/{run}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    params:
        spec=spec_of,
    message:
        "training {wildcards.run}"
    shell:
        "printf '%s' {params.spec:q} | python -m fltrain train - --again --quiet --threads {threads} 2>> {log:q}"
