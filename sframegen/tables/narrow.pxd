from sframegen.format.columns cimport Functions, Words
