"""The portal: pages for people, rendered on the server. Its only entry point is `router.create_router`, for the
bootstrap.

One view file per page. The shared parts are `site` (sign-in, errors, headers), `live` (updates of an open page) and
`templates/`. The portal decides nothing: it calls control as the signed-in user and shows the answer.
"""
