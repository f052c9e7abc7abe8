"""Samplers that a study may name."""
