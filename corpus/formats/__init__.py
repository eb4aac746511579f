"""Arch Linux, conda and Alpine packages, made by their own tools, with sections."""
