from sframegen.base.columns cimport Fdes
from sframegen.elf.columns cimport Spans
