"""A PyTorch training that steps when it is told to, and says after each step what it has become.

    python training.py BALLAST_BYTES [graph] [workers]

A line on its input is a number of steps to take; the answer is the loss of the last one, to the last bit, and whether
the ballast is as it was. `graph`: the step is a captured CUDA graph. `workers`: processes of a DataLoader draw the
batches.
"""

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

_WIDTH, _BATCH = 1024, 256


class Batches(Dataset):
    """Random numbers, the same for the same index."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(_BATCH, _WIDTH, generator=torch.Generator().manual_seed(index))


class Training:
    """A small network under Adam, on batches that a generator draws."""

    def __init__(self, as_graph: bool, with_workers: bool) -> None:
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 1)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, capturable=as_graph)
        self.input = torch.randn(_BATCH, _WIDTH, device="cuda")
        self.loss = torch.zeros((), device="cuda")
        self.graph = self._captured() if as_graph else None
        self.batches = iter(DataLoader(Batches(), batch_size=None, num_workers=2 if with_workers else 0))

    def step(self) -> None:
        self.input.copy_(next(self.batches))
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(self.input).square().mean()
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def _captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph


def main() -> None:
    ballast_bytes, *options = sys.argv[1:]
    ballast = torch.arange(int(ballast_bytes) // 8, device="cuda")
    expected = int(ballast.sum())
    training = Training("graph" in options, "workers" in options)
    print(f"ready {torch.cuda.memory_reserved()}", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            training.step()
        intact = int(ballast.sum()) == expected
        print(float(training.loss).hex(), "intact" if intact else "changed", flush=True)


if __name__ == "__main__":
    main()
