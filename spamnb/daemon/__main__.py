"""`python -m spamnb.daemon ROLE FD`: a child of the daemon in an interpreter of its own.

The role is an argument so that `ps` shows it; the parameters are the `StartParams` on the
descriptor.
"""

from __future__ import annotations

import os
import sys

# Before numpy is imported: its threads cost memory and gain nothing on small arrays.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from spamnb.daemon.supervisor import run_child  # noqa: E402 - after the variables

if __name__ == "__main__":
    sys.exit(run_child(int(sys.argv[2])))
