"""The store port on SQL: SQLite by default, PostgreSQL in production.

`sql_store.SqlStore` is the port, `upgrade` brings a database to the schema of this code; `server.bootstrap` calls both.
What a workload means and when it changes is control's business.
"""
