from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Functions
from sframegen.format.fre_bytes cimport is_masked
