"""The server: it learns what, never who."""
