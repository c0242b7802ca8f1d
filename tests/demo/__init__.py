"""`./dev demo`: two or three Sparks on this machine, live, with a stand-in for the engine."""
