"""Multi-rank tests for pytest: the `ranks` fixture and marker, warm rank processes."""
