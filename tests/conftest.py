"""Hypothesis profiles: ``dev`` is quick, ``ci`` tries more.

Both derive every example from the test's code, so a run that failed fails again, here and elsewhere.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "dev",
    derandomize=True,
    deadline=None,
    max_examples=50,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=200, stateful_step_count=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
