"""quire bench: a few small cases of each kind; figures are not judged, only that there are some."""

import pytest
from quire_cli import run


@pytest.mark.parametrize(
    "args",
    [
        ("attention", "--case", "cached/int8"),
        ("attention", "--case", "cached/f16"),
        ("attention", "--case", "decode/q25"),
    ],
)
def test_a_case_is_measured(args):
    done = run("bench", *args, "--pairs", "1", "--json")
    assert done.exit_code == 0, done.describe()
    rows = done.json["rows"]
    assert rows and all(args[2] in row["case"] for row in rows)
    assert all(row["value"] > 0 and row["floor"] > 0 for row in rows)


def test_unknown_benches_are_named():
    done = run("bench", "everything")
    assert done.exit_code == 2 and "everything" in done.stderr, done.describe()
