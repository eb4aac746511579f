from sframegen.code.isa.effects cimport BEGIN, BRANCH, CALL, DIRECT, INDIRECT, JUMP, NEXT, PADDING, RETURN, STOP
