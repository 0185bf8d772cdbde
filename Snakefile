# From data to tables: `snakemake` makes everything of the scale named in config/config.yaml.
#
#   snakemake                                   all items of the scale
#   snakemake flfa_table1                       one table or figure
#   snakemake --config items=flfa seeds=1     restricted, see config/config.yaml
#   snakemake --config train=false              from the records that exist
#   snakemake all_data                          datasets and partitions only
#   snakemake -n                                what would be done, and why
#   snakemake --workflow-profile PROFILE        elsewhere than on this machine
from snakemake.utils import min_version


report: "workflow/report/workflow.rst"


min_version("9.19")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


# With `train: false`, tables and figures are made from existing records: nothing is downloaded or trained.
if JOBS.request.train:

    include: "workflow/rules/data.smk"
    include: "workflow/rules/train.smk"


include: "workflow/rules/items.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


rule all:
    """Every table and figure of the scale, their overview, the run table, and the runs in MLflow."""
    default_target: True
    input:
        f"{OUT}/runs.csv",
        f"{OUT}/tracked.json",
        f"{OUT}/index.html",
        JOBS.outputs(),
        expand(rules.claims.output, paper=JOBS.papers),
        JOBS.summaries(JOBS.plan.runs),


for item in JOBS.plan.items:

    rule:
        name:
            item.target
        input:
            JOBS.item_outputs(item),
            JOBS.summaries(item.run_ids),
