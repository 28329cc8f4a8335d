"""What both services share over HTTP: listening, limits, transport, descriptions, metrics, logs."""
