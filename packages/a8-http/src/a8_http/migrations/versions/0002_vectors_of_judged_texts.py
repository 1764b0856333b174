"""Vectors of judged texts are told from those that are kept"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Which of the vectors that are there belong to judged texts only is not known: all of them are kept.
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.add_column(sa.Column("judged_at", sa.BigInteger(), nullable=True))
        batch_op.create_index("vectors_by_judging", ["judged_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.drop_index("vectors_by_judging")
        batch_op.drop_column("judged_at")
