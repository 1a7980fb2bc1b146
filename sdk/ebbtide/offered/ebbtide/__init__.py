"""Gives `import ebbtide` the SDK of the node's agent in a job where no ebbtide is installed.

The folder around this package holds nothing else, and is the last entry of a job's PYTHONPATH. Python looks there
before it looks into site-packages, so this module first looks for an installed ebbtide, of whatever version, and
imports that in its own place.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_OFFERED = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SDK = os.path.dirname(_OFFERED)
_OLDEST = (3, 10)


def _installed() -> "ModuleSpec | None":
    """Return the ebbtide that is installed for this Python; a folder that only has its name does not count."""
    path = [entry for entry in sys.path if not _is_offer(entry)]
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = PathFinder.find_spec(__name__, path)
        else:  # the finder of an editable install, for example; very old finders have no find_spec
            spec = finder.find_spec(__name__, None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.origin is not None and not _is_offer(_folder_of(spec.origin)):
            return spec
    return None


def _folder_of(origin: str) -> str:
    """Return the folder that holds the package of this `__init__.py`."""
    return os.path.dirname(os.path.dirname(os.path.abspath(origin)))


def _is_offer(entry: str) -> bool:
    """Return whether the folder is such an offer, of this agent or another; two would import each other for ever."""
    return os.path.abspath(entry).split(os.sep)[-2:] == _OFFERED.split(os.sep)[-2:]


def _of_the_agent() -> "ModuleSpec | None":
    if sys.version_info < _OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        raise ImportError("ebbtide needs Python 3.10 or newer, and this is " + version, name=__name__)
    return spec_from_file_location(__name__, os.path.join(_SDK, "__init__.py"), submodule_search_locations=[_SDK])


_spec = _installed() or _of_the_agent()
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
sys.modules[__name__] = _module  # what `import ebbtide` returns, and what `import ebbtide.torch` looks into
_spec.loader.exec_module(_module)
