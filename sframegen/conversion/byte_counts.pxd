from sframegen.elf.columns cimport Areas, Spans
from sframegen.format.columns cimport Functions
