"""The settings of a server: `settings` lists them, `load` reads them from flags, environment and file."""

from fairway.settings.load import InvalidSettings, read_settings
from fairway.settings.settings import SETTINGS, Setting, Settings, redacted

__all__ = ["SETTINGS", "InvalidSettings", "Setting", "Settings", "read_settings", "redacted"]
