"""Lets the end-to-end tests import the model maker and the golden files that lie beside them."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for folder in ("e2e", "hf", "golden"):
    sys.path.insert(0, str(TESTS / folder))
