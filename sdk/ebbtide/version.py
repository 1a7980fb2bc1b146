"""Names the version of the SDK, which the build reads here, and that of the job contract which it speaks."""

from typing import Final

VERSION = "0.1.0"

CONTRACT: Final = 1
"""The version of what an SDK and a supervisor say to each other. Each names its own, the supervisor in EBB_CONTRACT and
the SDK in its first message; what came in after the lower of both is neither said nor expected.

0: names none. 1: names it, and an SDK passes over requests that it does not know.
"""
