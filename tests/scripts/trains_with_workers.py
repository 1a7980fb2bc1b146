"""Trains a real model with a real DataLoader of four worker processes, and saves on SIGTERM while they run."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if os.environ["EBB_RESUME_DIR"]:
    saved = torch.load(Path(os.environ["EBB_RESUME_DIR"], "state.pt"))
    model.load_state_dict(saved["model"])
    step = saved["step"]
print(f"going on from {step}", flush=True)
inputs = torch.rand(4096, 4)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
while True:
    for x, y in DataLoader(data, batch_size=16, num_workers=4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % 50 == 1:
            print("up", flush=True)
        if asked:
            next(iter(DataLoader(data, batch_size=16, num_workers=4)))  # a save that needs the data once more
            torch.save({"model": model.state_dict(), "step": step}, Path(os.environ["EBB_CHECKPOINT_DIR"], "state.pt"))
            print(f"saved {step}", flush=True)
            sys.exit(85)
