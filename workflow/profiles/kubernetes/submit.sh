#!/bin/sh
# Submit a Snakemake job script as a Kubernetes job, and print the job's name.
# Usage: submit.sh CORES MEM_MB GPUS MINUTES JOB_SCRIPT
# FLTRAIN_IMAGE: container image with fltrain. FLTRAIN_VOLUME: claim of the shared volume, mounted at FLTRAIN_MOUNT (default:
# the working directory). FLTRAIN_GPU: name of the GPU resource (default: nvidia.com/gpu).
set -eu
: "${FLTRAIN_IMAGE:?name the container image}" "${FLTRAIN_VOLUME:?name the claim of the shared volume}"
resource=${FLTRAIN_GPU:-nvidia.com/gpu}
kubectl create -o jsonpath='{.metadata.name}' -f - << END
apiVersion: batch/v1
kind: Job
metadata: {generateName: fltrain-}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: $(($4 * 60))
  ttlSecondsAfterFinished: 86400
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      containers:
        - name: run
          image: "$FLTRAIN_IMAGE"
          command: [/bin/sh, "$5"]
          workingDir: "$PWD"
          resources: {requests: {cpu: "$1", memory: "$2M"}, limits: {memory: "$2M", $resource: "$3"}}
          volumeMounts: [{name: shared, mountPath: "${FLTRAIN_MOUNT:-$PWD}"}]
      volumes: [{name: shared, persistentVolumeClaim: {claimName: "$FLTRAIN_VOLUME"}}]
END
