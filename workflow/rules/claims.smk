rule claims:
    """Judge a paper's claims on its runs, summarise its comparisons with published values, and write its page."""
    input:
        made=by(JOBS.outputs, "paper"),
        published=by(JOBS.paper_published, "paper"),
        anomalies=JOBS.anomalies,
        claims=by(JOBS.paper_statements, "paper"),
    output:
        csv=f"{OUT}/{{paper}}/claims.csv",
        md=f"{OUT}/{{paper}}/claims.md",
        summary=f"{OUT}/{{paper}}/summary.json",
        page=f"{OUT}/{{paper}}/index.html",
    log:
        f"results/logs/{SCALE}/claims/{{paper}}.log",
    benchmark:
        f"results/benchmarks/{SCALE}/claims/{{paper}}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        paper=by(JOBS.paper_runs, "paper"),
        reporting=REPORTING,
    message:
        "judging the claims of {wildcards.paper}"
    script:
        "../scripts/claims.py"
