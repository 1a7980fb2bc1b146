"""Defers the loading of modules that libraries import and that a short command never uses.

The standard library's `LazyLoader` does not: before Python 3.12, an ``import`` of the module already loads it.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

_LOADING = RLock()


def defer(name: str, *functions: str, **instead: Any) -> None:
    """Let the module of this name load when something of it is first used, unless it is loaded already.

    ``functions`` may be taken out of it (``from name import function``); it loads when one of them is called.
    ``instead`` are the parts that libraries use as soon as they import it; they serve until it loads.
    """
    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    module = sys.modules[name] = module_from_spec(spec)
    module.__dict__.update({function: _loading(module, function) for function in functions}, **instead)
    module.__class__ = _Deferred
    package, _, last = name.rpartition(".")
    if package:  # an import that finds the module in `sys.modules` does not give it to its package
        setattr(sys.modules[package], last, module)


class _Deferred(ModuleType):
    """A module that loads when it is asked for something that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name != "__path__":  # ``from name import …`` asks whether it is a package, which would have that already
            _load(self)
        return ModuleType.__getattribute__(self, name)


def _load(module: ModuleType) -> None:
    spec = module.__spec__
    with _LOADING:
        if spec is not None and spec.loader is not None and not spec.loader_state:
            spec.loader_state = "loading"  # whoever asks now is the module itself; others wait for the lock
            try:
                spec.loader.exec_module(module)
            except BaseException:
                spec.loader_state = None
                raise
            module.__class__ = ModuleType


def _loading(module: ModuleType, function: str) -> Callable[..., Any]:
    """Return a function that calls the one of this name in the module."""

    def call(*given: Any, **named: Any) -> Any:
        _load(module)
        return getattr(module, function)(*given, **named)

    return call
