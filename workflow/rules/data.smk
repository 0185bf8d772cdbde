rule all_data:
    """All datasets of the scale: run this where there is internet."""
    input:
        JOBS.data_files(),


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
        dataset=by(JOBS.dataset),
    message:
        "preparing dataset {wildcards.dataset}"
    script:
        "../scripts/data.py"
