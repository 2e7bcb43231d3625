"""Define the table of what-if studies. A test compares it with what the migrations create."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Identity, Index, Integer, Table, Text, func, text

from fairway.ledger.schema.tables import Moment, metadata, one_of, sql_list
from fairway.model.study import OPEN_STUDIES, StudyState

what_if_study: Final = Table(
    "what_if_study",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("state", Text, nullable=False, server_default=StudyState.QUEUED.value),
    # The text of the changed fleet file.
    Column("fleet", Text, nullable=False),
    # `half_life=1d,7d`; empty: none.
    Column("sweep", Text, nullable=False),
    Column("days", Integer, nullable=False),
    Column("seeds", Integer, nullable=False),
    # From 0 to 1.
    Column("progress", Double, nullable=False, server_default=text("0")),
    # How often it was begun: servers may end meanwhile.
    Column("tries", Integer, nullable=False, server_default=text("0")),
    # As JSON.
    Column("result", Text),
    # Why it failed.
    Column("code", Text, nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False, server_default=func.now()),
    Column("ended_at", Moment),
    one_of("state", StudyState),
)
Index(
    "what_if_study_open_idx",
    what_if_study.c.id,
    postgresql_where=text(f"state IN ({sql_list(OPEN_STUDIES)})"),
)
