"""One thread for linear algebra: matrices are small, and threads that wait for each other count as computing time."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
