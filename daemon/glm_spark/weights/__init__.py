"""The weights on every Spark: pinned, fetched once, handed over the cable, proven by their content."""
