"""What is asserted: cases, oracles, verdicts, the pytest plugin and the command line."""
