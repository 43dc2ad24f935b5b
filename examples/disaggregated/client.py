"""One server reads the prompt, another one says the answer: prefill and decode on two machines.

    python client.py http://127.0.0.1:8081 http://127.0.0.1:8082 "It is a truth universally acknowledged, that"

The first call ends when the prompt's blocks are durable in the remote tier that both servers have (serve.sh
starts two). The second server loads them and computes only the end of the prompt that fills no block. Where
the hand-over failed it computes all of it: the answer is the same. Standard library only.
"""

from __future__ import annotations

import json
import sys
import urllib.request


def ask(server: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(f"{server}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def hand_over(prefill: str, decode: str, prompt: str, **options: object) -> dict[str, object]:
    """The answer of `decode` to a prompt that `prefill` has read."""
    read = ask(prefill, {"prompt": prompt, "max_tokens": 0, "kv_transfer": {"publish": True}})
    return ask(decode, {"prompt": prompt, "kv_transfer_params": read["kv_transfer_params"], **options})


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    answer = hand_over(*sys.argv[1:], max_tokens=32, temperature=0)
    usage = answer["usage"]
    print(answer["choices"][0]["text"])
    print(f"{usage['prompt_tokens_details']['cached_tokens']} of {usage['prompt_tokens']} tokens were found",
          file=sys.stderr)


if __name__ == "__main__":
    main()
