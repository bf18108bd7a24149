#!/usr/bin/env bash
# Start N ranks with mpirun, Open MPI's or MPICH's (also Intel's). Flags of mpirun itself, such as
# a list of hosts, go into MPIRUN_FLAGS.
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: [MPIRUN=mpirun MPIRUN_FLAGS=...] $0 N COMMAND [ARGUMENT ...]" >&2
  exit 2
fi
ranks=$1
shift
mpirun=${MPIRUN:-mpirun}
read -r -a flags <<<"${MPIRUN_FLAGS:-}"

if "$mpirun" --version 2>&1 | grep -q -i 'open *mpi\|open-mpi'; then
  # Its default binds each rank to one core, which our thread pool would then share; a small host
  # may have fewer slots than ranks, and those must sleep while they wait.
  flags=(--bind-to none --oversubscribe "${flags[@]}")
  export OMPI_MCA_mpi_yield_when_idle=1
  if [[ $EUID == 0 ]]; then
    flags+=(--allow-run-as-root)
  fi
fi
exec "$mpirun" "${flags[@]}" -n "$ranks" "$@"
