"""Hypothesis profiles: thorough by default, quick where the NumPy reference does the work."""

import os

from hypothesis import HealthCheck, settings

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=25, **_common)
settings.register_profile("quick", max_examples=12, **_common)
settings.register_profile("long", max_examples=2000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
