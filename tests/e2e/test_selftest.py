"""The program's own checks."""

from quire_cli import run


def test_isolation_holds_and_says_how():
    done = run("selftest", "isolation", "--json")
    assert done.exit_code == 0, done.describe()
    assert done.json["failed"] == 0
    assert {check["codec"] for check in done.json["checks"]} == {"f16", "int8", "nf4"}
    assert all(check["passed"] and check["detail"] for check in done.json["checks"])


def test_isolation_for_people():
    done = run("selftest", "isolation")
    assert done.exit_code == 0, done.describe()
    assert "21 checks, 0 failed" in done.stdout


def test_selftest_needs_to_know_which():
    assert run("selftest").exit_code == 2
    assert run("selftest", "nothing").exit_code == 2
