"""Alembic's scripts: how a database gets from one schema to the next. Run by `store.upgrade`, never by hand."""
