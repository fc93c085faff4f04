"""Alembic's scripts, which migrate a database from one schema to the next. Run by `store.upgrade`, never by hand."""
