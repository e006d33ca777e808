"""Set-up that every test shares."""

import os

# Tiny matrices: torch's threads only fight each other for the cores of a busy machine (measured: fifteen times slower).
os.environ.setdefault("OMP_NUM_THREADS", "1")
