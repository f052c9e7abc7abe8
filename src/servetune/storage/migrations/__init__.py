"""Alembic environment of our tables; run by `storage.schema`, never by the alembic command."""
