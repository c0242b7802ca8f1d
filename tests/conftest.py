"""Settings for every test: these machines are shared, so how long an example takes says nothing about the code."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
