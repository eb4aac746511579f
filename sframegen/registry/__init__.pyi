# Each public name once: own_packages.py reads these lines, type checkers read them, too.
from sframegen.registry.codectl_calls import CodeOption as CodeOption
from sframegen.registry.codectl_calls import codectl as codectl
from sframegen.registry.interface import Caller as Caller
from sframegen.registry.interface import Memory as Memory
from sframegen.registry.jit_writer import JitWriter as JitWriter
from sframegen.registry.prctl_calls import prctl_register as prctl_register
from sframegen.registry.prctl_calls import prctl_unregister as prctl_unregister
from sframegen.registry.regions import Region as Region
from sframegen.registry.regions import Registry as Registry
from sframegen.registry.regions import RegistryError as RegistryError
from sframegen.registry.sframe_calls import sframe_register as sframe_register
from sframegen.registry.sframe_calls import sframe_unregister as sframe_unregister
from sframegen.registry.structures import CodeElfInfo as CodeElfInfo
from sframegen.registry.structures import CodeJitInfo as CodeJitInfo
from sframegen.registry.structures import JitEntry as JitEntry
from sframegen.registry.structures import SframeSetup as SframeSetup
