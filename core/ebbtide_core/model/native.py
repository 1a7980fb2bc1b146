"""Says how a class is compiled where the core is compiled (see `scripts/compile_core.py`).

mypyc makes each class of a compiled module a native one, whose fields are those of a C structure. Two settings differ
from that:

- ``allow_interpreted_subclasses=True``: the class keeps Python's way to make an object, so that it can be copied and
  pickled although its ``__init__`` takes arguments. Dataclasses and classes without such arguments can be anyway.
- ``native_class=False``: the class stays an ordinary one, because it has a base that a native class cannot have.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr  # the only name by which mypyc knows it
else:

    def mypyc_attr(**_: bool) -> Callable[[type[T]], type[T]]:
        """Return the class as it is, because the settings make no difference to Python."""
        return lambda cls: cls
