"""The roles as processes: client, shuffling service, server. They meet only on the wire."""
