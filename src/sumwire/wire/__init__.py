"""Terms, Payload and Sum <-> bytes: docs/format.md is the specification."""
