rule chart_library:
    """Bundle the JavaScript of Vega-Lite, which each page of curves includes."""
    output:
        "results/vega.js",
    log:
        "results/logs/chart_library.log",
    benchmark:
        "results/benchmarks/chart_library.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "bundling Vega-Lite"
    script:
        "../scripts/chart_library.py"


rule table:
    """Assemble a table from run records and published values."""
    input:
        records=by(JOBS.item_inputs, "paper", "item"),
        published=by(JOBS.published, "paper", "item"),
        anomalies=JOBS.anomalies,
        library=rules.chart_library.output,
    output:
        csv=f"{OUT}/{{paper}}/{{item}}.csv",
        md=f"{OUT}/{{paper}}/{{item}}.md",
        tex=f"{OUT}/{{paper}}/{{item}}.tex",
        curves=f"{OUT}/{{paper}}/{{item}}.curves.html",
        html=report(
            f"{OUT}/{{paper}}/{{item}}.html",
            caption="../report/item.rst",
            category="{paper}",
            subcategory="tables",
            labels=by(JOBS.report_labels, "paper", "item"),
        ),
    log:
        f"results/logs/{SCALE}/table/{{paper}}_{{item}}.log",
    benchmark:
        f"results/benchmarks/{SCALE}/table/{{paper}}_{{item}}.tsv"
    wildcard_constraints:
        paper=JOBS.papers_of("tables"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **SHEET,
        reporting=REPORTING,
    message:
        "assembling {wildcards.paper}/{wildcards.item}"
    script:
        "../scripts/table.py"


rule figure:
    """Draw a figure from run records."""
    input:
        records=by(JOBS.item_inputs, "paper", "item"),
        library=rules.chart_library.output,
    output:
        pdf=f"{OUT}/{{paper}}/{{item}}.pdf",
        svg=f"{OUT}/{{paper}}/{{item}}.svg",
        csv=f"{OUT}/{{paper}}/{{item}}.csv",
        curves=f"{OUT}/{{paper}}/{{item}}.curves.html",
        png=report(
            f"{OUT}/{{paper}}/{{item}}.png",
            caption="../report/item.rst",
            category="{paper}",
            subcategory="figures",
            labels=by(JOBS.report_labels, "paper", "item"),
        ),
    log:
        f"results/logs/{SCALE}/figure/{{paper}}_{{item}}.log",
    benchmark:
        f"results/benchmarks/{SCALE}/figure/{{paper}}_{{item}}.tsv"
    wildcard_constraints:
        paper=JOBS.papers_of("figures"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **SHEET,
        reporting=REPORTING,
    message:
        "drawing {wildcards.paper}/{wildcards.item}"
    script:
        "../scripts/figure.py"


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
