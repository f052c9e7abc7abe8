"""The simulated node: scenario, model, server and clock."""
