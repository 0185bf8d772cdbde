rule all_data:
    """All datasets and partitions of the scale: run this where there is internet."""
    input:
        JOBS.data_files(),
        JOBS.partition_files(),


rule data:
    """Download and prepare a dataset: a file of uint8 images with digest and class histogram, and a contact sheet."""
    output:
        data="results/data/{dataset}.safetensors",
        sheet="results/data/{dataset}.png",
    log:
        "results/logs/data/{dataset}.log",
    retries: 2
    localrule: True
    conda:
        "../../environment.yml"
    params:
        dataset=by(JOBS.dataset),  # a change prepares it again
        options=by(JOBS.fetch_options),
    message:
        "preparing dataset {wildcards.dataset}"
    shell:
        "python -m fltrain data fetch {params.options:q} > {log} 2>&1"


rule partition:
    """Divide a training split among clients: index arrays with digest and client-by-class counts."""
    input:
        data=by(lambda partition: JOBS.data_files([JOBS.partitions[partition].dataset])),
    output:
        "results/partitions/{partition}.safetensors",
    log:
        "results/logs/partition/{partition}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        partition=by(JOBS.partition),
    message:
        "partitioning data: {wildcards.partition}"
    script:
        "../scripts/partition.py"
