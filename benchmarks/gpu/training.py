"""A small training for the benchmark: with PyTorch if installed, else the kernel of the GPU probe.

    python benchmarks/gpu/training.py --seconds 20

Prints one JSON object: what did the work, how many steps it made, in how many seconds. The benchmark `gpu` runs it as
two workloads on shares of one GPU. A multilayer perceptron learns a made-up function, which shows that it computes:
its loss falls.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

from commonage.gpu.cuda.driver import LIBRARY, Cuda, CudaError
from commonage.gpu.cuda.probe import ROUNDS

_WIDTH, _BATCH = 2048, 4096


def main() -> None:
    """Train for some time and print the result as JSON. Exit code 1 if training failed."""
    parser = argparse.ArgumentParser(prog="train", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--library", default=LIBRARY)
    options = parser.parse_args()
    try:
        torch = importlib.import_module("torch")
        result = _with_torch(torch, options.seconds)
    except ImportError:
        result = _with_the_kernel(options.seconds, options.library)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["error"] else 0)


def _with_torch(torch: Any, seconds: float) -> dict[str, Any]:
    answer: dict[str, Any] = {"by": f"PyTorch {torch.__version__}", "steps": 0, "seconds": 0.0, "error": ""}
    if not torch.cuda.is_available():
        return {**answer, "error": "PyTorch sees no GPU"}
    torch.manual_seed(1)
    wide = [layer for _ in range(4) for layer in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*wide, torch.nn.Linear(_WIDTH, 1)).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs = torch.randn(_BATCH, _WIDTH, device="cuda")
    wanted = inputs[:, :8].sum(dim=1, keepdim=True).sin()
    losses = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    answer |= {"steps": len(losses), "seconds": time.monotonic() - began, "losses": [losses[0], losses[-1]]}
    answer["peak_mib"] = torch.cuda.max_memory_reserved() >> 20
    if not losses[-1] < losses[0]:
        answer["error"] = "the loss did not decrease"
    return answer


def _with_the_kernel(seconds: float, library: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "by": "our own kernel (PyTorch is not installed)",
        "steps": 0,
        "seconds": 0.0,
        "error": "",
    }
    try:
        cuda = Cuda(library)
        cuda.use(0)
        burner = cuda.burner()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            burner.burn(ROUNDS)
            answer["steps"] += 1
        answer["seconds"] = time.monotonic() - began
    except CudaError as error:
        answer["error"] = str(error)
    return answer


if __name__ == "__main__":
    main()
