"""The loop: sample, check, launch, measure, judge, tell."""
