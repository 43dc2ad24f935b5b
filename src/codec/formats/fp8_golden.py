"""Writes fp8_golden.txt: what ml_dtypes makes of every fp8 code and of every f16.

    pip install ml_dtypes numpy; python3 src/codec/formats/fp8_golden.py

Two lines for each format. `values`: the f32 bits of the codes 0..255. `runs`: pairs code:count over
the halves 0..65535, saturated before they are narrowed because ml_dtypes does not saturate.
"""
import itertools
import pathlib

import ml_dtypes
import numpy as np

FORMATS = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}


def main():
    lines = []
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    for name, dtype in FORMATS.items():
        codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32).view(np.uint32)
        lines.append(f"{name} values " + " ".join(f"{code:x}" for code in codes))
        limit = float(ml_dtypes.finfo(dtype).max)
        narrow = np.clip(halves, -limit, limit).astype(dtype).view(np.uint8)
        runs = [(code, len(list(run))) for code, run in itertools.groupby(narrow.tolist())]
        lines.append(f"{name} runs " + " ".join(f"{code:x}:{count}" for code, count in runs))
    path = pathlib.Path(__file__).with_name("fp8_golden.txt")
    path.write_text("\n".join(lines) + "\n")


main()
