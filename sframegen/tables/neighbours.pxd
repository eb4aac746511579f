from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Functions
