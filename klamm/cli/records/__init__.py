"""Commands that write and read records, and that show transactions."""
