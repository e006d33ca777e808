"""Set-up that every test shares."""

import os

from hypothesis import settings

# Tiny matrices: torch's threads only fight each other for the cores of a busy machine (measured: fifteen times slower).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not fail a property.
settings.register_profile("surefoot", deadline=None)
settings.load_profile("surefoot")
