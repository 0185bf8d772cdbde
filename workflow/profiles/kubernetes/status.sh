#!/bin/sh
# Print the state of a Kubernetes job for Snakemake: running, success or failed.
state=$(kubectl get job "$1" -o 'jsonpath={.status.succeeded}/{.status.failed}' 2>&1) || {
  case $state in *NotFound*) echo failed ;; *) echo running ;; esac  # else the server does not answer
  exit
}
case $state in
  1/*) echo success ;;
  */[1-9]*) echo failed ;;
  *) echo running ;;
esac
