"""Decodes code into columns of the instructions that affect the frame or the flow of control."""
