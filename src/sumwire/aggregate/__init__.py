"""Terms | Terms, Payload + Payload: whoever stands between the workers."""
