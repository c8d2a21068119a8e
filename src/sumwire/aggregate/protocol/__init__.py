"""What client and server both know: neither imports the other."""
