"""Draw docs/figures/top.svg: a frame of ``ebb top`` while real training runs on fake GPUs. Takes about a minute."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ebbtide_agent.jsonfile import write_json
from ebbtide_cli.demo.svg import write_svg
from ebbtide_cli.top.feed import Feed
from ebbtide_cli.top.frame import frame
from ebbtide_machine.process import Identity

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/figures/top.svg"
GIB = 2**30
WIDTH = 100
STEPS_BY = 90.0  # seconds, in which every job has to have begun


def ebb(*arguments: str) -> str:
    """Run ``ebb`` on the cluster in EBB_HOME; what it printed."""
    command = [sys.executable, "-m", "ebbtide_cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def submit(name: str, script: str, *options: str) -> None:
    """Queue one of the examples."""
    command = [sys.executable, f"examples/{script}.py", "--steps", "2000", "--log-every", "1000"]
    ebb("submit", "--name", name, "--env", "OMP_NUM_THREADS=1", *options, "--", *command)


def stranger(folder: Path, gpu: str, gib: int) -> subprocess.Popen[bytes]:
    """A process that nobody submitted, with memory of a fake GPU."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    who = Identity.of(process.pid)
    assert who is not None
    entry = {"pid": who.pid, "starttime": who.starttime, "gpus": {gpu: gib * GIB}}
    write_json(folder / "processes" / f"{who.pid}.json", entry)
    return process


def draw(home: Path) -> None:
    """Fill a cluster, wait until every job makes steps, and keep the frame."""
    ebb("up", "--gpus", "4xRTX4090", "--node", "ws1")
    submit("charlm", "charlm", "--gpus", "1/2", "--gpu-mem", "7GiB")
    submit("ablation", "charlm", "--gpus", "1/2", "--gpu-mem", "11GiB")
    submit("finetune", "charlm", "--gpus", "1", "--gpu-mem", "18GiB")
    gpus = json.loads(ebb("nodes", "--json"))[0]["gpus"]
    free = gpus[-1]["uuid"]
    foreign = stranger(home / "nodes/ws1/gpus", free, 9)
    try:
        submit("sweep", "charlm", "--gpus", "4")
        feed = Feed(None, 1.0)
        feed.start()
        give_up = time.monotonic() + STEPS_BY
        while len(feed.picture().speeds) < 3 or not feed.picture().nodes[0].gpus[-1].reading.processes:
            if time.monotonic() > give_up:
                sys.exit("the jobs made no steps in time")
            time.sleep(1.0)
        time.sleep(5.0)  # for speeds that are means of something
        picture = feed.picture()
        write_svg(PICTURE, lambda canvas: canvas.print(*frame(picture, WIDTH), sep="\n"), "top", WIDTH)
    finally:
        foreign.kill()
        foreign.wait()


def main() -> None:
    """Leave nothing but the picture."""
    with tempfile.TemporaryDirectory(prefix="ebb-top-") as folder:
        os.environ["EBB_HOME"] = folder
        try:
            draw(Path(folder))
        finally:
            ebb("down", "--now")


if __name__ == "__main__":
    main()
