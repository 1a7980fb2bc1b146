"""Augment a data set as a bag of jobs: one task a shard, on CPUs, each continuing at the record that it had reached.

    ebb submit --cpu-only --array 0-3 --name bag -- python examples/preprocess.py --shards 4

Each record is a handwritten digit, turned and blurred, and appended to the shard's own file. A checkpoint is the
number of records done and the length of that file then: a resumed task cuts off what came after, so that no record is
lost and none is there twice.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

import ebbtide
import numpy as np
from scipy.ndimage import gaussian_filter, rotate
from sklearn.datasets import load_digits

SIDE = 64
"""Pixels of a side of the pictures that are made."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", type=int, default=int(os.environ.get("EBB_ARRAY_INDEX") or 0), help="of the array")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--copies", type=int, default=12, help="records made of each digit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=500, metavar="N")
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("EBB_OUTPUT_DIR") or "preprocessed"))
    return parser.parse_args()


def record(picture: np.ndarray, seed: int, number: int) -> bytes:
    """Return one augmented digit; the generator is made anew for each, so that it has no state to save."""
    draw = np.random.default_rng([seed, number])
    large = np.kron(picture, np.ones((SIDE // 8, SIDE // 8)))
    turned = rotate(large, draw.uniform(-25, 25), reshape=False, order=3)
    blurred: np.ndarray = gaussian_filter(turned, draw.uniform(0.5, 2.0))
    return blurred.clip(0, 16).astype(np.uint8).tobytes()


def save(directory: Path, length: int) -> None:
    (directory / "state.json").write_text(json.dumps({"length": length}))


def main() -> None:
    args = arguments()
    job = ebbtide.job()
    args.folder.mkdir(parents=True, exist_ok=True)
    pictures = load_digits().images[args.shard :: args.shards]
    total = len(pictures) * args.copies
    done, length = 0, 0
    if state := job.load_checkpoint():
        done, length = state.step, json.loads((state.path / "state.json").read_text())["length"]
        print(f"resumed from record {done} (attempt {job.attempt})")

    with (args.folder / f"shard-{args.shard}.u8").open("r+b" if length else "wb") as shard:
        shard.truncate(length)
        shard.seek(length)
        for number in range(done, total):
            shard.write(record(pictures[number % len(pictures)], args.seed, number))
            if (number + 1) % args.log_every == 0 or number + 1 == total:
                print(f"record {number + 1}/{total}")
            job.report(step=number + 1, total=total)
            if job.should_suspend() and number + 1 < total:
                shard.flush()
                os.fsync(shard.fileno())
                job.suspend(partial(save, length=shard.tell()), number + 1)


if __name__ == "__main__":
    main()
