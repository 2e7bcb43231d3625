"""Configure logging of a server: structlog and library logs in one format, to stderr, without secrets."""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SECRET: Final = re.compile(
    r"fw_[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+|://[^/@\s]*:[^/@\s]*@"
)
_NOISY: Final = ("uvicorn", "uvicorn.error", "httpx2", "httpcore2", "alembic", "sqlalchemy", "asyncio")
"""Libraries whose debug and info messages do not help an operator."""


def configure_logs(level: str, format: str) -> None:
    """Configure logging for this process. Call it once."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(format)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _renderers(format: str) -> list[Processor]:
    # Plain tracebacks: the rich ones print local variables, which may be secrets.
    first: list[Processor] = [structlog.processors.format_exc_info, hide_secrets]
    if format == "json":
        return [*first, structlog.processors.JSONRenderer()]
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return [*first, structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0, pad_level=False)]


def hide_secrets(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Mask what looks like a token, or a password in a URL: the last safeguard before the log."""
    return {key: _SECRET.sub("***", v) if isinstance(v, str) else v for key, v in event.items()}
