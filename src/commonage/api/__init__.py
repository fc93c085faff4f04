"""REST and server-sent events: routes for each noun, problem documents, and the only place where domain becomes wire.

Made by `app.create_app` and called by the server's bootstrap. Decides nothing: it decodes the request (`decode`), calls
control, and encodes the result (`encode`).
"""
