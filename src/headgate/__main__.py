"""`python -m headgate`."""

from .cli.app import main

main(prog_name="headgate")
