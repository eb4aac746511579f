"""The SFrame section's bytes."""
