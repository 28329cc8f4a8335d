"""What all roles agree on: the document, the wire format, and how messages are sealed."""
