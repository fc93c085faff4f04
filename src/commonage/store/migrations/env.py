"""Executed by Alembic: runs the migrations on the connection, and in the transaction, that `store.upgrade` gives."""

from __future__ import annotations

from alembic import context

from commonage.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # works on SQLite too, since the transaction was begun by hand
)
with context.begin_transaction():
    context.run_migrations()
