"""What each ABI and the kernel fix: registers as they are handed out, signal frames, frame pointers."""
