"""Load generators that a study may name."""
