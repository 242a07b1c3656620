"""`python -m headgate`."""

from .cli import main

main(prog_name="headgate")
