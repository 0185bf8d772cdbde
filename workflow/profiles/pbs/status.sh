#!/bin/sh
# Print the state of a PBS job for Snakemake: running, success or failed.
state=$(qstat -x -f "$1" 2> /dev/null) || { echo running; exit; }  # the server does not answer
case $state in
  *"job_state = F"*"Exit_status = 0"* | *"Exit_status = 0"*"job_state = F"*) echo success ;;
  *"job_state = F"*) echo failed ;;
  *) echo running ;;
esac
