"""Trains a small neural network to read handwritten digits; the data come with scikit-learn, nothing is downloaded.

    python train.py                     some seconds, ends with "accuracy 0.97…"
    python train.py --seconds 60        goes on for a minute, to have something to watch

The same seed gives the same numbers. In an array (commonage run --array 5 …) each member takes its own.
"""

import argparse
import itertools
import os
import signal
import sys
import threading
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

# Whoever stops a workload gives it some seconds (its grace): enough to end the epoch and say how far it came.
told_to_stop = threading.Event()


def share_in_words():
    """What this process was given of a GPU; the platform says it in these variables."""
    memory_mib = os.environ.get("COMMONAGE_GPU_MEMORY_MIB")
    if memory_mib is None:
        return "no GPU"
    simulated = " (simulated: nothing is computed on it)" if os.environ.get("COMMONAGE_GPU_SIMULATED") else ""
    return f"{int(memory_mib) / 1024:g} GiB of GPU memory{simulated}"


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training data")
    parser.add_argument("--seconds", type=float, default=0, help="go on for at least so long, whatever the epochs")
    parser.add_argument("--hidden", type=int, default=64, help="neurons of the hidden layer")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("COMMONAGE_ARRAY_INDEX", "0")))
    return parser.parse_args()


def main():
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: told_to_stop.set())
    digits = load_digits()
    images = digits.data / 16.0
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    print(f"{len(train_x)} images to learn from, {len(test_x)} to test with; {share_in_words()}", flush=True)

    network = MLPClassifier(
        hidden_layer_sizes=(arguments.hidden,), learning_rate_init=0.01, random_state=arguments.seed
    )
    chance = np.random.default_rng(arguments.seed)
    began = time.monotonic()
    for epoch in itertools.count(1):
        for batch in np.array_split(chance.permutation(len(train_x)), len(train_x) // 64):
            network.partial_fit(train_x[batch], train_y[batch], classes=digits.target_names)
        # Flushed, so that `commonage logs --follow` and the portal show each line as it comes.
        accuracy = network.score(test_x, test_y)
        print(f"epoch {epoch:3d}  loss {network.loss_:.4f}  accuracy {accuracy:.4f}", flush=True)
        if told_to_stop.is_set() or (epoch >= arguments.epochs and time.monotonic() - began >= arguments.seconds):
            break
        if arguments.seconds:
            time.sleep(0.5)  # a long run is for watching, not for heating the room

    print(f"accuracy {accuracy:.4f}")
    return 1 if told_to_stop.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
