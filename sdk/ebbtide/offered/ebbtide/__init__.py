"""What `import ebbtide` finds in a job where no ebbtide is installed: that of the node's agent.

The folder around this package holds nothing else, and is the last entry of a job's PYTHONPATH. Python looks there
before it looks into site-packages, so an ebbtide that is installed, of whatever version, is looked for first, and
imported in place of this one.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_OFFERED = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SDK = os.path.dirname(_OFFERED)
_OLDEST = (3, 10)


def _installed() -> "ModuleSpec | None":
    """The ebbtide that this job's Python has without us; what only has the name of one, as a folder may, is none."""
    path = [entry for entry in sys.path if not _is_offer(entry)]
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = PathFinder.find_spec(__name__, path)
        else:  # that of an editable install, say; very old ones cannot be asked like this
            spec = finder.find_spec(__name__, None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.origin is not None and not _is_offer(_folder_of(spec.origin)):
            return spec
    return None


def _folder_of(origin: str) -> str:
    """Where the package of this `__init__.py` lies."""
    return os.path.dirname(os.path.dirname(os.path.abspath(origin)))


def _is_offer(entry: str) -> bool:
    """Whether the folder is one like ours, of this agent or another; they would wait for each other for ever."""
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
