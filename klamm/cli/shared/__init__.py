"""The parts that several commands share: options, the client, output, confirmation, and the message after Ctrl-C."""
