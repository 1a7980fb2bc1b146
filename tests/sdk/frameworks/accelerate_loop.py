"""A job on Accelerate with a tiny model; prints the digest of the final weights.

Arguments: the steps at which it sends itself a signal, like TERM=3 or KILL=9.
"""

import hashlib
import os

import torch
from recipes import Signals, recipe
from torch.utils.data import DataLoader, TensorDataset


def compute_loss(model, batch):
    rows, labels = batch
    print("sum", rows.sum().item())
    return torch.nn.functional.cross_entropy(model(rows), labels)


os.environ |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
torch.set_num_threads(1)
torch.manual_seed(0)
features = torch.randn(48, 8)
loader = DataLoader(TensorDataset(features, (features.sum(1) > 0).long()), batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))
model.register_forward_pre_hook(Signals())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
exec(recipe("accelerate"))
digest = hashlib.sha256()
for tensor in accelerator.unwrap_model(model).state_dict().values():  # noqa: F821  the recipe's
    digest.update(tensor.numpy().tobytes())
print("digest", digest.hexdigest())
