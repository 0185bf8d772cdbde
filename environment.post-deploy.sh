#!/usr/bin/env bash
# Snakemake runs this in the environment that it made from environment.yml, from the folder of the workflow.
set -euo pipefail
python -m pip install --no-deps --editable "$PWD"
