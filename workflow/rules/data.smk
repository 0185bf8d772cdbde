rule all_data:
    """Every data set and partition of the scale: what a machine without internet needs beforehand."""
    input:
        [str(RESULTS.data(dataset)) for dataset in DATASETS.values()],
        [str(RESULTS.partition_file(partition)) for partition in PARTITIONS],


rule data:
    """Get and prepare a data set: one file of uint8 images with digest and class histogram, a contact sheet."""
    output:
        data="results/data/{dataset}.safetensors",
        sheet="results/data/{dataset}.png",
    log:
        "results/logs/data/{dataset}.log",
    benchmark:
        "results/benchmarks/data/{dataset}.tsv"
    retries: 2
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
