rule chart_library:
    """Bundle the JavaScript of Vega-Lite, which each page of curves includes."""
    output:
        "results/vega.js",
    log:
        "results/logs/chart_library.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "bundling Vega-Lite"
    script:
        "../scripts/chart_library.py"


rule table:
    """Make a table from run records and published values."""
    input:
        unpack(by(JOBS.item_inputs, "paper", "item")),
        library=rules.chart_library.output,
    output:
        **item_files(jobs.TABLE_FORMS, "html", "tables"),
    log:
        f"results/logs/{SCALE}/items/{{paper}}_{{item}}.log",
    wildcard_constraints:
        paper=JOBS.papers_of("tables"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        item=by(JOBS.item_job, "paper", "item"),
        reporting=REPORTING,
    message:
        "assembling {wildcards.paper}/{wildcards.item}"
    script:
        "../scripts/item.py"


use rule table as figure with:
    output:
        **item_files(jobs.FIGURE_FORMS, "png", "figures"),
    wildcard_constraints:
        paper=JOBS.papers_of("figures"),
    message:
        "drawing {wildcards.paper}/{wildcards.item}"


use rule figure as model_figure with:
    # It computes on trained models, for minutes on a GPU, so it is a job with resources.
    wildcard_constraints:
        paper=JOBS.papers_of("models"),
    localrule: False
    resources:
        gpu=1,
        runtime=lambda wildcards, attempt: 120 * attempt,
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
    message:
        "computing and drawing {wildcards.paper}/{wildcards.item}"
