"""The parts of the engine that resolve arguments."""
