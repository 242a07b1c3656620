"""Draining a file of requests through a limited API: jobs in, answers out, nothing lost in between.

`jobs` reads what is to be sent, `journal` keeps what came back, `runner` stands between them, and `progress`
tells people how it goes. The command line is in `headgate.cli.app`.
"""
