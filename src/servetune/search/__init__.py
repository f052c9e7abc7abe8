"""How the next assignment is chosen."""
