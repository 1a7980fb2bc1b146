"""An Optuna study whose trials are jobs: several at a time, on half a GPU each, preempted and resumed like all others.

    pip install optuna
    ebb up --gpus 4xRTX4090
    python examples/optuna_search.py --trials 8 --parallel 4

The study itself runs here, by Optuna's ask-and-tell interface; only the objective runs in jobs.
"""

import argparse
from concurrent.futures import FIRST_COMPLETED, Future, wait

import ebbtide
import optuna
from ebbtide.cluster import Cluster


def objective(x: float, y: float) -> float:
    """Stand for a training run: return the loss that these values come to."""
    job = ebbtide.job()
    loss = (x - 2) ** 2 + (y + 1) ** 2
    job.report(step=1, total=1, loss=loss)
    return loss


def settle(study: optuna.Study, running: dict[Future[float], optuna.Trial]) -> None:
    """Tell the study of the trials that end next."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        trial = running.pop(future)
        if (error := future.exception()) is not None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            print(f"trial {trial.number} failed: {error}", flush=True)
        else:
            study.tell(trial, future.result())
            print(f"trial {trial.number} loss {future.result():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, metavar="N")
    parser.add_argument("--parallel", type=int, default=4, metavar="N", help="trials that run at a time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=options.seed))
    running: dict[Future[float], optuna.Trial] = {}
    with Cluster.connect().executor(gpus=0.5, name="optuna") as executor:
        for _ in range(options.trials):
            if len(running) == options.parallel:
                settle(study, running)
            trial = study.ask()
            values = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
            running[executor.submit(objective, *values)] = trial
        while running:
            settle(study, running)
    print(f"best: {study.best_params} loss {study.best_value:.4f} after {len(study.trials)} trials")


if __name__ == "__main__":
    main()
