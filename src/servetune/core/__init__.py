"""The field's words: frozen data and small protocols. No I/O; pydantic and the standard library only."""
