"""A job that suspends itself at once. The argument says what else is to be seen of its way out."""

import atexit
import sys
import tempfile
import threading
import weakref

import ebbtide


class Sentinel:
    """Tells whether the interpreter took the script's modules apart: that is when it lets go of this."""

    def __del__(self) -> None:
        print("taken apart", flush=True)


def main(what: str) -> None:
    global kept, left_open
    kept = Sentinel()
    job = ebbtide.job()
    match what:
        case "handlers":
            atexit.register(print, "handler")
            weakref.finalize(kept, print, "finalizer")
            thread = threading.Thread(target=lambda: (threading.main_thread().join(), print("thread")))
            thread.start()
        case "file":
            left_open = open(sys.argv[2], "w")  # noqa: SIM115  that nobody closes it is the point
            left_open.write("buffered")
        case "closed by a handler":
            left_open = open(sys.argv[2], "w")  # noqa: SIM115
            left_open.write("buffered")
            atexit.register(left_open.close)
        case "nameless":
            left_open = tempfile.TemporaryFile("w")  # noqa: SIM115
        case "mpi":
            sys.modules["mpi4py.MPI"] = sys
        case "late handler":
            atexit.register(lambda: atexit.register(print, "too late for anybody"))
    try:
        print("leaving")
        job.suspend(lambda directory: (directory / "state").write_text("saved"), 1)
    except SystemExit as leaving:
        if what == "caught":
            print(f"caught {leaving.code}")
            sys.exit(3)
        raise
    finally:
        print("finally")


if __name__ == "__main__":
    main(sys.argv[1])
