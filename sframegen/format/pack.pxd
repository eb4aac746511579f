from sframegen.format.reader cimport Fields
