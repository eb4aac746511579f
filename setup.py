"""How the modules that sframegen/program/build.py lists are compiled, and what happens when they cannot be.

Such a module is plain Python. With a C compiler it becomes an extension module; without one, or with SFRAMEGEN_PURE=1 in the
environment, the same file is interpreted, slower and with the same results.
"""

import os
import runpy

from setuptools import Extension, setup

COMPILED = runpy.run_path("sframegen/program/build.py")["MODULES"]
DIRECTIVES = {"language_level": 3, "boundscheck": True, "wraparound": False, "initializedcheck": False, "cdivision": True}


def extensions() -> list[Extension]:
    if os.environ.get("SFRAMEGEN_PURE") == "1":
        return []
    from Cython.Build import cythonize  # noqa: PLC0415 - absent where nothing is compiled

    # Without -g: debug information of generated C is four fifths of a module, and a fifth of the time to compile it.
    modules = [Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=["-g0"]) for name in COMPILED]
    modules = cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/cython")
    for module in modules:
        module.optional = True  # said here, because cythonize() forgets it
    return modules


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
