"""What is released: a commit → an sdist, wheels, an SBOM and their checksums; each of them tried where nothing else is."""
