"""The API's description, for docs and other people's clients: `python -m fairway.api.openapi FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.description import description
from fairway.api.fleets import NO_FLEET
from fairway.ledger import Ledger
from fairway.ledger.connection import Connections, Limits


def document() -> str:
    """The OpenAPI document as it is committed. No ledger is opened: describing the API asks nothing of it."""
    ledger = Ledger(Connections("postgresql://", Limits()))
    app = create_app(ledger, CollectorRegistry(), lambda _: NO_FLEET)
    return json.dumps(description(app), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
