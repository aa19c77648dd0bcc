"""Marks the root of the tests. The plugin is found by entry point; named here it would be registered twice."""
