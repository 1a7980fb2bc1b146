"""A job on Accelerate with a tiny model; prints the digest of the final weights.

Arguments: the steps at which it sends itself a signal, like TERM=3 or KILL=9.
"""

import hashlib
import os
import signal
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from ebbtide.integrations.accelerate import steps
from torch.utils.data import DataLoader, TensorDataset

STEPS, SAMPLES, BATCH = 30, 48, 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = torch.randn(SAMPLES, 8)
    data = TensorDataset(features, (features.sum(1) > 0).long())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for step, (rows, labels) in steps(accelerator, loader, total=STEPS, every=4):
        print("sum", step, rows.sum().item())
        for name, number in (word.split("=") for word in sys.argv[1:]):
            # A killed attempt comes by the same step once more.
            if step == int(number) and (name == "TERM" or os.environ["EBB_ATTEMPT"] == "1"):
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(rows), labels))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    digest = hashlib.sha256()
    for tensor in accelerator.unwrap_model(model).state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("digest", digest.hexdigest())


if __name__ == "__main__":
    main()
