from sframegen.profile.stacks.call_tree cimport CallTree
