"""Alembic migrations of the database, applied at start and by `a8-http admin migrate`."""
