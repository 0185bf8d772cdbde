rule claims:
    """Judge a paper's claims on its runs, summarise its comparisons with published values, and write its page."""
    input:
        unpack(by(JOBS.paper_inputs, "paper")),
    output:
        csv=f"{OUT}/{{paper}}/claims.csv",
        md=f"{OUT}/{{paper}}/claims.md",
        summary=f"{OUT}/{{paper}}/summary.json",
        page=f"{OUT}/{{paper}}/index.html",
    log:
        f"results/logs/{SCALE}/claims/{{paper}}.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        paper=by(JOBS.paper_job, "paper"),
        reporting=REPORTING,
    message:
        "judging the claims of {wildcards.paper}"
    script:
        "../scripts/claims.py"
