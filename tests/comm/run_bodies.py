"""Every conformance body on the ranks of a launcher: `mpiexec -n 3 python run_bodies.py mpi`."""

import sys

from bodies import BODIES

from atb_dist.comm import RankInfo, connect

comm = connect(RankInfo.from_env(), sys.argv[1])
for body in BODIES:
    body(comm)
comm.barrier()
if comm.rank == 0:
    print(f"{len(BODIES)} bodies passed over {comm.size} ranks of {comm.name}")
comm.close()
