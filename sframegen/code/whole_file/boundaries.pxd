from sframegen.code.isa.effects cimport BEGIN, BRANCH, CALL, DIRECT, FLOW_MASK, INDIRECT, JUMP, NEXT, PADDING, RETURN, STOP
