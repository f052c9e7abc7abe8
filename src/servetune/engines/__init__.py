"""Inference engines that a study may name."""
