"""sframegen profile against restless and hostile processes."""
