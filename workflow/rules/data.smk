rule data:
    """Prepare a data set: one file of uint8 images with digest and class histogram."""
    output:
        "results/data/{dataset}.safetensors",
    log:
        "results/logs/data/{dataset}.log",
    benchmark:
        "results/benchmarks/data/{dataset}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        dataset=dataset_of,
    message:
        "preparing data set {wildcards.dataset}"
    script:
        "../scripts/data.py"


rule partition:
    """Divide a training split over clients: index arrays with digest and client-by-class counts."""
    input:
        data=partition_data,
    output:
        "results/partitions/{partition}.safetensors",
    log:
        "results/logs/partition/{partition}.log",
    benchmark:
        "results/benchmarks/partition/{partition}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        partition=partition_of,
    message:
        "dividing data: {wildcards.partition}"
    script:
        "../scripts/partition.py"
