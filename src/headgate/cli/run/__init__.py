"""`headgate run`: sends the jobs of a file through a limited API and keeps the answers.

`command` reads the options and `execute` carries them out. `jobs` reads what is to be sent, `journal` keeps
what came back, `runner` stands between them with `sender` and `replies`, and `progress` shows how it goes.
"""
