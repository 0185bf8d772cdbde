rule claims:
    """Judge a paper's claims on its runs, summarise its comparisons with published values, and write its page."""
    input:
        unpack(by(JOBS.paper_inputs)),
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
        paper=by(JOBS.paper_job),
        reporting=REPORTING,
    message:
        "judging the claims of {wildcards.paper}"
    script:
        "../scripts/claims.py"


rule index:
    """Write the front page of the scale and a page of all runs, also if the export to MLflow fails."""
    input:
        JOBS.outputs(),
        [f"{OUT}/{paper}/summary.json" for paper in JOBS.papers],
    output:
        index=f"{OUT}/index.html",
        runs=f"{OUT}/runs.html",
        verdicts=f"{OUT}/verdicts.csv",
    log:
        f"results/logs/{SCALE}/index.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # A function, because Snakemake takes braces in texts for wildcards.
        listing=lambda wildcards: JOBS.listing(),
        reporting=REPORTING,
    message:
        "writing the overview"
    script:
        "../scripts/index.py"


rule track:
    """Export runs, tables and figures to MLflow in one process; exporting again changes nothing."""
    input:
        JOBS.outputs(),  # made after all runs
        [f"{OUT}/{paper}/summary.json" for paper in JOBS.papers],
    output:
        f"{OUT}/tracked.txt",
    log:
        f"results/logs/{SCALE}/track.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        # A function, because Snakemake takes braces in texts for wildcards.
        options=lambda wildcards: JOBS.track_options(),
    message:
        "exporting runs to MLflow"
    shell:
        # The terminal shows if it waits for another export.
        "python -m fltrain track {params.options:q} 2>&1 > {output} | tee {log} | "
        "{{ grep --line-buffered ^waiting >&2 || true; }}"
