"""What several commands share: their options, their client, what they print and ask, and what Ctrl-C says."""
