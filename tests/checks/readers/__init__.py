"""What consumers do with a section, restated from what their sources do, and with the mistakes that they make."""
