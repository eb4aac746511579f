"""Relocatable objects and archives -> their sections, and objects with one."""
