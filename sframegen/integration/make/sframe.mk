# GNU make, by `include $(shell sframegen integration --make-file)`: what built-in rules link gets an SFrame section. Recipes put
# $(SFRAMEGEN_LINK) before the command that links. SFRAMEGEN: the program; SFRAMEGEN_FLAGS: options of `sframegen link`.
SFRAMEGEN ?= sframegen
SFRAMEGEN_LINK = $(SFRAMEGEN) link $(SFRAMEGEN_FLAGS) --

# LINK.cc and its like, but not those that are made of others, or done already
$(foreach variable,$(filter LINK.%,$(.VARIABLES)),\
    $(if $(findstring LINK,$(value $(variable))),,$(eval $(variable) = $$(SFRAMEGEN_LINK) $(value $(variable)))))
