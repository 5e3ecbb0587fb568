"""What must hold while a simulated cluster runs and when it is at rest: verdicts over brokers, logs and ledgers."""
