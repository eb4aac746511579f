"""What other tools do to files with our section, and add-section to files that other tools wrote, judged by running the files."""
