"""Records how an attempt ended, as a supervisor does, and then the same again; prints when it was."""

import sys
from pathlib import Path

from ebbtide_agent.contract.attempt_dir import AttemptDir

place = AttemptDir(Path(sys.argv[1]))
place.reserve_final_status()
for code in (1, 2):
    place.record_final_status({"exit_code": code})
    print(code, flush=True)
