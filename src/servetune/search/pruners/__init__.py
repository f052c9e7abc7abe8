"""Pruners that a study may name."""
