"""REST and server-sent events: routes for each noun, problem documents, and the only place where domain becomes wire.

Made by `app.create_app` and called by the server's bootstrap. Decides nothing: it reads what was asked (`decode`),
calls control, and writes what came of it (`encode`).
"""
