# Each public name once: own_packages.py reads these lines, type checkers read them, too.
from sframegen.registry.calls import Caller as Caller
from sframegen.registry.calls import CodeOption as CodeOption
from sframegen.registry.calls import codectl as codectl
from sframegen.registry.calls import sframe_register as sframe_register
from sframegen.registry.calls import sframe_unregister as sframe_unregister
from sframegen.registry.regions import Memory as Memory
from sframegen.registry.regions import Region as Region
from sframegen.registry.regions import Registry as Registry
from sframegen.registry.regions import RegistryError as RegistryError
from sframegen.registry.structures import CodeJitInfo as CodeJitInfo
from sframegen.registry.structures import SframeSetup as SframeSetup
