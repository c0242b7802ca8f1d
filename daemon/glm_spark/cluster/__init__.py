"""Leader and worker: one authenticated session between them, two clocks, one generation at a time."""
