"""The gateway: a local reverse proxy that lets calls wait until the API has room for them.

`headgate serve` and `headgate exec` start it. `app.Gateway` is the whole of it in one object.
"""
