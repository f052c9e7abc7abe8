"""Run by Alembic: applies the versions over the connection that `storage.schema` hands over, in its transaction."""

from alembic import context

from servetune.storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,  # `alembic_version` is Optuna's
    transactional_ddl=True,  # true of SQLite too, as we begin transactions ourselves
)
context.run_migrations()
