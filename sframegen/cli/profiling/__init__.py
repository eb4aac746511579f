"""Parts of `sframegen profile`: how frames are named, where profiles go, and what is shown while it samples."""
