"""`python -m kvfence.conformance` is the command line."""

from kvfence.conformance.cli import main

main(prog_name="kvfence")
