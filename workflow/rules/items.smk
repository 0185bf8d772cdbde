rule reporting:
    """Mark the version of the code that makes tables: a copy without Snakemake's metadata has no params to compare.

    It is a target, because a missing input alone reruns nothing.
    """
    output:
        touch(f"results/logs/reporting/{REPORTING}"),
    localrule: True
    message:
        "noting the version of the reporting code"


rule table:
    """Make a table from run records and published values."""
    input:
        unpack(by(JOBS.item_inputs)),
        reporting=rules.reporting.output,
    output:
        **item_files("table", "html"),
    log:
        f"results/logs/{SCALE}/items/{{item}}.log",
    wildcard_constraints:
        item=JOBS.pattern("table"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        item=by(lambda item: JOBS.items[item].sheet.model_dump(mode="json")),
    message:
        "assembling {wildcards.item}"
    script:
        "../scripts/item.py"


use rule table as figure with:
    output:
        **item_files("figure", "png"),
    wildcard_constraints:
        item=JOBS.pattern("figure"),
    localrule: True  # it is not taken over from the other rule
    message:
        "drawing {wildcards.item}"


use rule figure as model_figure with:
    # It computes on trained models, for minutes on a GPU, so it is a job with resources.
    wildcard_constraints:
        item=JOBS.pattern("model_figure"),
    resources:
        gpu=1,
        runtime=lambda wildcards, attempt: 120 * attempt,
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
    message:
        "computing and drawing {wildcards.item}"
