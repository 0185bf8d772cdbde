# The workflow is in the place that the workflow catalogue expects. This file lets `snakemake` find its default profile.
include: "workflow/Snakefile"


# An included file cannot set the default target.
rule default:
    input:
        rules.all.input,
