"""Checks a section: is it well formed, do its readers accept it, does it agree with the call frame information?"""
