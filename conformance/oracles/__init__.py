"""The oracles: each asks one question of what was observed, and returns evidence."""
