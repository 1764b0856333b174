"""Alembic's entry: runs the migrations on the connection that Store.migrate opened."""

from alembic import context
from sqlmodel import SQLModel

import a8_http.store  # noqa: F401  (registers the tables)

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    compare_type=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
