from sframegen.profile.stacks.call_tree cimport CallTree
from sframegen.profile.stacks.numbered cimport Numbered
