"""Version of the package, importable by every room; pyproject.toml takes it from here."""

__version__ = "0.2.0"
