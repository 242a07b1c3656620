"""`python -m headgate`."""

from .cli import main

main()
