"""What a server is told. `reading` settles it, `table` lists it, `settled` is what the server has."""

from fairway.settings.reading import InvalidSettings, read_settings
from fairway.settings.settled import Settings, redacted
from fairway.settings.table import SETTINGS, Setting

__all__ = ["SETTINGS", "InvalidSettings", "Setting", "Settings", "read_settings", "redacted"]
