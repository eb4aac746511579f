from sframegen.base.columns cimport Entries, Fdes, Programs, Rows
