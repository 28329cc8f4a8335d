"""The roles as processes: client, shuffling service, server. They communicate only by wire."""
