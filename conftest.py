"""Shared by all tests: the models, built once; pytest's own plugin tester."""

pytest_plugins = ["pytester"]
