"""Modules that take seconds to import: whoever collects tests does not need them, only the test that uses one."""

import warnings
from importlib import import_module
from typing import Any


class Late:
    """The module of this name, imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # a collector asks every name in a module whether it is a test
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what others leave open while they are imported is not for this test
            return getattr(import_module(self._name), attribute)


torch = Late("torch")
torch_nn = Late("torch.nn")
ebbtide_torch = Late("ebbtide.torch")
scipy_stats = Late("scipy.stats")
scipy_integrate = Late("scipy.integrate")
distributed = Late("distributed")
