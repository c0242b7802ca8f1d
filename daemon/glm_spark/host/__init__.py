"""The Spark's own health beside its cable: memory, page cache, what the kernel says."""
