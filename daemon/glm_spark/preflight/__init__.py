"""What must hold on this Spark before a rank is started: one file a check, read-only, each under a deadline."""
