"""An Optuna study whose trials are jobs: several at a time, on half a GPU each, preempted and resumed like all others.

    pip install optuna
    ebb up --gpus 4xRTX4090
    python examples/optuna_search.py --trials 8 --parallel 4

The study itself runs here, by Optuna's ask-and-tell interface; only the objective runs in jobs. Each trial trains a
small network on handwritten digits, and saves it when it is asked to stop.
"""

import argparse
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path

import ebbtide
import joblib
import optuna
from ebbtide.cluster import Cluster
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

HELD_OUT = 297


def objective(lr: float, width: int, epochs: int = 60) -> float:
    """Train for so many epochs; return the loss on digits that the network never saw."""
    job = ebbtide.job()
    pixels, labels = load_digits(return_X_y=True)
    model, first, loss = MLPClassifier((width,), learning_rate_init=lr, random_state=0), 0, float("inf")
    if state := job.load_checkpoint():
        model, loss = joblib.load(state.path / "model.joblib")
        first = state.step
    for epoch in range(first + 1, epochs + 1):
        model.partial_fit(pixels[:-HELD_OUT] / 16, labels[:-HELD_OUT], classes=range(10))
        loss = float(log_loss(labels[-HELD_OUT:], model.predict_proba(pixels[-HELD_OUT:] / 16)))
        job.report(step=epoch, total=epochs, loss=loss)
        if job.should_suspend() and epoch < epochs:
            job.suspend(partial(save, model, loss))
    return loss


def save(model: MLPClassifier, loss: float, directory: Path) -> None:
    joblib.dump((model, loss), directory / "model.joblib")


def settle(study: optuna.Study, running: dict[Future[float], optuna.Trial]) -> None:
    """Tell the study of the trials that end next."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        trial = running.pop(future)
        if (error := future.exception()) is not None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            print(f"trial {trial.number} failed: {error}", flush=True)
        else:
            study.tell(trial, future.result())
            shown = " ".join(f"{name} {value:.4g}" for name, value in trial.params.items())
            print(f"trial {trial.number} loss {future.result():.4f} with {shown}", flush=True)


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
            values = trial.suggest_float("lr", 1e-4, 1e-1, log=True), trial.suggest_int("width", 8, 256, log=True)
            running[executor.submit(objective, *values)] = trial
        while running:
            settle(study, running)
    print(f"best: {study.best_params} loss {study.best_value:.4f} after {len(study.trials)} trials")


if __name__ == "__main__":
    main()
