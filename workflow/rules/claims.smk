rule claims:
    """Judge a paper's claims on its runs, and sum up its comparisons with published values."""
    input:
        made=paper_items,
        published=paper_published,
        anomalies="config/reported/anomalies.csv",
        claims=paper_statements,
    output:
        csv=f"{OUT}/{{paper}}/claims.csv",
        md=f"{OUT}/{{paper}}/claims.md",
        summary=f"{OUT}/{{paper}}/summary.json",
    log:
        f"results/logs/{SCALE}/claims/{{paper}}.log",
    benchmark:
        f"results/benchmarks/{SCALE}/claims/{{paper}}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        paper=paper_heading,
        sheets=paper_sheets,
        claims=paper_claims,
    message:
        "judging the claims of {wildcards.paper}"
    script:
        "../scripts/claims.py"
