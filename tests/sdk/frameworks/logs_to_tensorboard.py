"""A job that logs every step to TensorBoard, publishes every fourth, and sends itself the signals of its arguments."""

from recipes import recipe, signal_at


def train(step):
    if step > 1:
        writer.flush()  # noqa: F821  the recipe's
    signal_at(step)
    return step


def save(folder):
    (folder / "n").write_text("saved")


exec(recipe("tensorboard"))
