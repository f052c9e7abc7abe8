"""A stand-in for the engine: a parser and checks of a few flags, with ways to misbehave."""
