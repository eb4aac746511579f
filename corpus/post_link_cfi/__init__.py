"""Programs that toolchains linked and rewrote in many ways, and what `sframegen check --instructions` finds in their CFI."""
