"""`make demo`: the demo of the command line, `headgate demo`."""

from headgate.cli.app import main

if __name__ == "__main__":
    main(["demo"], prog_name="headgate")
