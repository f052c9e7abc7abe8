"""Nodes that a study may name."""
