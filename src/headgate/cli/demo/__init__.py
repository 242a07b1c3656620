"""The demo: the same jobs drained three ways, side by side, with a table and a picture at the end.

Rules of this room: everything runs on this machine and nothing is made up: the figures are those of the
sandbox, which counts for each of the three what it sent.
"""
