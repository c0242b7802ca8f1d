"""The engine's image over the cable: from the leader to a worker that has none, proven by the worker's own pin."""
