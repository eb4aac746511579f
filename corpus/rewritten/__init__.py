"""Real wheels and Debian packages, before and after they get sections."""
