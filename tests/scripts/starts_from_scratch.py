"""Never saves, never loads: each run is the first."""

import training

print("starting from scratch")
for step in training.steps(0):
    if step % 100 == 0:
        print(f"step {step}", flush=True)
