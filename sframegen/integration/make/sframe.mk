# For GNU make: after `include $(shell sframegen integration --make-file)`, programs that built-in rules link get an SFrame section.
# Other recipes put $(SFRAMEGEN_LINK) before their link command. SFRAMEGEN: the program. SFRAMEGEN_FLAGS: options of its command link.
SFRAMEGEN ?= sframegen
SFRAMEGEN_LINK = $(SFRAMEGEN) link $(SFRAMEGEN_FLAGS) --

# Prefix LINK.c, LINK.cc and so on, but not variables that expand to another LINK variable, or that already have the prefix.
$(foreach variable,$(filter LINK.%,$(.VARIABLES)),\
    $(if $(findstring LINK,$(value $(variable))),,$(eval $(variable) = $$(SFRAMEGEN_LINK) $(value $(variable)))))
