#!/usr/bin/env bash
# Start N ranks per host with torchrun. On one host, nothing else is needed. On several, run this on
# each with the same NNODES, RENDEZVOUS (host:port of one of them) and JOB_ID.
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: [NNODES=M RENDEZVOUS=HOST:PORT JOB_ID=NAME] $0 N COMMAND [ARGUMENT ...]" >&2
  exit 2
fi
ranks=$1
shift

if [[ ${NNODES:-1} == 1 ]]; then
  where=(--standalone)
else
  : "${RENDEZVOUS:?give HOST:PORT of one of the $NNODES hosts}"
  : "${JOB_ID:?give this job a name of its own, the same on all hosts}"
  where=(--nnodes "$NNODES" --rdzv-backend c10d --rdzv-endpoint "$RENDEZVOUS" --rdzv-id "$JOB_ID")
fi
exec torchrun "${where[@]}" --nproc-per-node "$ranks" --no-python "$@"
