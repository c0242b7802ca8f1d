"""The supervised engine: how a rank is built, run, followed and asked."""
