"""Settings of the whole test run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test depends on the clock. Where many run at once an example can take any time at all.
settings.register_profile(
    "project", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")
