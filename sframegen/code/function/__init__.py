"""The instructions of one function -> the frame at each, and whether that is proven."""
