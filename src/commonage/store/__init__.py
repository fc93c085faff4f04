"""The store port on SQL: SQLite by default, PostgreSQL in production.

`sql_store.SqlStore` implements the port, `upgrade` migrates a database to the schema of this code;
`server.bootstrap` calls both. Control decides the meaning of workloads and their changes.
"""
