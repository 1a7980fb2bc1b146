"""One of several workers of torchrun, each with a DataLoader of two processes that stay; rank 0 saves.

With `sdk` it is asked to leave through the SDK; else each worker has a handler of its own, and they agree at each step.
"""

import os
import signal
import sys
from pathlib import Path

import ebbtide
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

ON_SDK = "sdk" in sys.argv


def agreed(asked: bool) -> bool:
    answer = torch.tensor(float(asked))
    dist.all_reduce(answer)
    return answer.item() > 0


def main() -> None:
    asked = []
    job = ebbtide.job()
    if not ON_SDK:
        signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    if os.environ["EBB_RESUME_DIR"]:
        step = torch.load(Path(os.environ["EBB_RESUME_DIR"], "state.pt"))["step"]
    if rank == 0:
        print(f"going on from {step}", flush=True)
    loader = DataLoader(TensorDataset(torch.rand(512, 4)), batch_size=8, num_workers=2, persistent_workers=True)
    while True:
        for (batch,) in loader:
            dist.all_reduce(batch.sum())
            step += 1
            if step % 50 == 1:
                print("up", flush=True)
            state = {"step": step}
            if ON_SDK and job.should_suspend():
                if rank == 0:
                    print(f"saved {step}", flush=True)
                job.suspend(lambda folder, state=state: torch.save(state, folder / "state.pt"), step=step)
            if not ON_SDK and agreed(bool(asked)):
                if rank == 0:
                    next(iter(loader))  # a save that needs the data once more
                    torch.save(state, Path(os.environ["EBB_CHECKPOINT_DIR"], "state.pt"))
                    print(f"saved {step}", flush=True)
                dist.barrier()
                sys.exit(85)


if __name__ == "__main__":
    main()
