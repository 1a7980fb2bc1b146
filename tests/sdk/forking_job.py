"""A job that is asked to stop and has children of its own; prints how each of them fared."""

import multiprocessing
import os
import signal
import sys
import time

import ebbtide


def nap(seconds: float) -> None:
    time.sleep(seconds)


def code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    job = ebbtide.job()
    job.report(step=1)
    os.kill(os.getpid(), signal.SIGTERM)
    print("parent asked", job.should_suspend())

    child = os.fork()
    if child == 0:
        job.report(step=99, total=99)
        sys.exit(job.should_suspend() or ebbtide.job() is not job)
    print("child asked", bool(code(child)))

    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    os.kill(child, signal.SIGTERM)
    print("child told to terminate", code(child))

    pool = multiprocessing.get_context("fork").Pool(2)
    pool.map_async(nap, [1000.0, 1000.0])
    pool.terminate()
    pool.join()
    print("pool terminated")
    job.suspend(lambda directory: (directory / "state").write_text("saved"))


if __name__ == "__main__":
    main()
