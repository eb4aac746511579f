"""Section bytes -> breaches of the specification."""
