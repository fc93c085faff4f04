"""The portal: pages for people, rendered on the server. The bootstrap enters by `router.create_router`, nothing else.

One view file per page; what they share stands in `site` (signing in, errors, headers), `live` (updates of an open page)
and `templates/`. The portal decides nothing: it asks control, as the signed-in user, and shows the answer.
"""
