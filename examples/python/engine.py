"""A conversation on the bundled model that outlives the engine, and what the cache holds of it."""

from __future__ import annotations

import pathlib
import tempfile

from quire.engine import Engine

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with Engine(MODEL, store=directory, hot_bytes=64 << 20) as engine:
            with engine.open_session("talk") as session:
                for event in session.turn("It is a truth universally acknowledged, ",
                                          max_tokens=24):
                    print(event.text, end="", flush=True)
            print()
        with Engine(MODEL, store=directory, hot_bytes=64 << 20) as engine:
            with engine.reopen_session("talk") as session:
                done = session.turn("and then ", max_tokens=24).read()
                print(f"{done.loaded_tokens} of {done.prompt_tokens} tokens came from the store")
            for block in engine.entries(2):
                print(f"a block of token {block['first_token']} on, in the store: "
                      f"{block['in_store']}")


if __name__ == "__main__":
    main()
