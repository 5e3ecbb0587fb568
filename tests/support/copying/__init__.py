"""Topics copied in transactions while processes are killed: the programs that copy, and what must be true of a copy."""
