"""A torch network, compiled here, saved, and run where there is no torch and no compiler: numpy is enough.

python examples/save_and_ship.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import convopt

SHIPPED = """
import sys
import numpy as np
import convopt
module = convopt.load(sys.argv[1])
print("shipped:", module(np.load(sys.argv[2])).round(4).tolist())
assert "torch" not in sys.modules
"""


def main() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    ).eval()
    x = torch.randn(1, 3, 32, 32)
    with tempfile.TemporaryDirectory() as folder:
        artifact, image = Path(folder) / "net.convopt", Path(folder) / "x.npy"
        convopt.optimize(net, example_inputs=(x,)).save(artifact)
        np.save(image, x.numpy())
        print(f"saved {artifact.stat().st_size / 1024:.0f} KiB")
        subprocess.run([sys.executable, "-c", SHIPPED, str(artifact), str(image)], check=True)
    with torch.no_grad():
        print("torch:  ", net(x).numpy().round(4).tolist())


if __name__ == "__main__":
    main()
