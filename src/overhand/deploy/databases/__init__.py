"""Transactions in SQLite or PostgreSQL, on which the stores of both services are built."""
