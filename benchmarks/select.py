"""`python benchmarks/select.py` runs picking.py.

Python has a module of this name, too. Whoever imports that from a script of this folder finds this
file first, and is given the right one.
"""

import importlib.machinery
import importlib.util
import os
import runpy
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    runpy.run_path(os.path.join(HERE, "picking.py"), run_name="__main__")
else:
    elsewhere = [path for path in sys.path if os.path.abspath(path) != HERE]
    spec = importlib.machinery.BuiltinImporter.find_spec(__name__)
    spec = spec or importlib.machinery.PathFinder.find_spec(__name__, elsewhere)
    if spec is None or spec.loader is None:
        raise ImportError("Python's own module select is missing")
    sys.modules[__name__] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
