"""Version of the package, importable by every room."""

__version__ = "0.1.0"
