"""The shuffling service: it learns who, never what."""
