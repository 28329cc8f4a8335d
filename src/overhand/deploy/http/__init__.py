"""HTTP for both services: how they listen, answer, count and log."""
