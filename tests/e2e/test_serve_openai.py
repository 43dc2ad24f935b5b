"""quire serve with the public `openai` client, as a user of that API would."""

import re
import shutil
import subprocess

import openai
import pytest

import quire_cli
import quire_server

PROMPT = "It is a truth universally acknowledged, that a single man in possession of"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
TEMPLATE = ("{%- for message in messages -%}\n[{{ message['role'] | upper }}] "
            "{{ message['content'] }}\n{% endfor -%}\n"
            "{%- if add_generation_prompt -%}\n[ASSISTANT]\n{%- endif -%}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with quire_server.serving(tmp_path_factory.mktemp("serve"), "--hot-bytes", "256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def cli_text(prompt, tokens, *more):
    done = quire_cli.run("generate", "--model", quire_server.TINY, "--prompt", prompt,
                         "--max-tokens", tokens, "--json", *more)
    assert done.exit_code == 0, done.describe()
    return done.json["text"]


def test_completes_as_the_command_line_does(client):
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0)
    assert answer.choices[0].text == cli_text(PROMPT, 40)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == len(PROMPT) + 40


def test_the_second_call_was_cached(client):
    prompt = "A prompt of its own: " + PROMPT
    first = client.completions.create(model="tiny", prompt=prompt, max_tokens=4)
    second = client.completions.create(model="tiny", prompt=prompt, max_tokens=4)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == len(prompt) // 16 * 16
    assert second.choices[0].text == first.choices[0].text


def test_a_seed_is_a_draw(client):
    def ask(seed):
        return client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30, seed=seed,
                                         temperature=1.0, top_p=0.9).choices[0].text
    assert ask(7) == ask(7) != ask(8)
    assert client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=30, seed=7,
        temperature=0.5).choices[0].text == cli_text(PROMPT, 30, "--temperature", 0.5, "--seed", 7)


@pytest.mark.parametrize("chat", [False, True])
def test_streams_what_it_answers(client, chat):
    if chat:
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=24)
        text = whole.choices[0].message.content
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=24,
                                                stream=True, stream_options={"include_usage": True})
        pieces = list(stream)
        said = "".join(piece.choices[0].delta.content for piece in pieces if piece.choices)
        assert pieces[0].choices[0].delta.role == "assistant"
    else:
        whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24)
        text = whole.choices[0].text
        stream = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, stream=True,
                                           stream_options={"include_usage": True})
        pieces = list(stream)
        said = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert said == text
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert pieces[-2].choices[0].finish_reason == "length"
    assert len({piece.id for piece in pieces}) == 1


def test_a_stream_comes_in_pieces(client):
    """A slow reader gets several tokens at once; of many tokens not all."""
    stream = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=600, stream=True)
    assert len(list(stream)) > 3


def test_stop_strings(client):
    free = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40).choices[0].text
    stop = free[10:14]
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, stop=[stop])
    assert answer.choices[0].text == free[:free.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    pieces = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, stop=[stop],
                                       stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == free[:free.index(stop)]


def test_logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6,
                                            temperature=0, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert "".join(each.token for each in content) == answer.choices[0].message.content
    for each in content:
        assert each.logprob == each.top_logprobs[0].logprob <= 0  # greedy: the likeliest
        assert len(each.top_logprobs) == 3
    plain = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, logprobs=2)
    assert plain.choices[0].logprobs.tokens == list(plain.choices[0].text)
    assert plain.choices[0].logprobs.text_offset == list(range(6))


def test_penalties_and_bias(client):
    def text(**rules):
        return client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24,
                                         **rules).choices[0].text

    plain = text()
    assert text(frequency_penalty=0, presence_penalty=0.0, logit_bias={},
                extra_body={"repetition_penalty": 1.0, "top_k": -1, "min_p": 0}) == plain
    for rules in ({"frequency_penalty": 2}, {"presence_penalty": 2},
                  {"extra_body": {"repetition_penalty": 3}}):
        assert text(**rules) != plain, rules
    assert "e" in plain and "e" not in text(logit_bias={ord("e"): -100})  # a token is a byte
    stopped = text(extra_body={"stop_token_ids": [ord("e")]})
    assert stopped == plain[:plain.index("e")]
    drawn = text(temperature=100, seed=1, extra_body={"min_p": 1})  # the likeliest alone is left
    assert drawn == plain


def test_a_text_is_scored(client):
    """As evaluation harnesses do: the prompt's own logprobs, and nothing is generated."""
    scored = client.completions.create(model="tiny", prompt=[PROMPT, "Once upon"], max_tokens=0,
                                       echo=True, logprobs=1)
    for choice, prompt in zip(scored.choices, (PROMPT, "Once upon")):
        assert choice.text == prompt
        assert "".join(choice.logprobs.tokens) == prompt
        assert choice.logprobs.token_logprobs[0] is None
        assert all(each <= 0 for each in choice.logprobs.token_logprobs[1:])
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, echo=True)
    assert whole.choices[0].text.startswith(PROMPT)
    assert whole.usage.completion_tokens == 4


def test_several_answers(client):
    answer = client.completions.create(model="tiny", prompt=[PROMPT, "Once"], n=2, max_tokens=12,
                                       temperature=1.2, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    assert answer.usage.prompt_tokens == len(PROMPT) + 4


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("arguments, kind, param", [
    ({"prompt": PROMPT, "max_tokens": 0}, openai.BadRequestError, "max_tokens"),
    ({"prompt": PROMPT, "temperature": -1}, openai.BadRequestError, "temperature"),
    ({"prompt": PROMPT, "best_of": 2}, openai.BadRequestError, "best_of"),
    ({"prompt": PROMPT, "max_tokens": 9, "extra_body": {"min_tokens": 20}}, openai.BadRequestError,
     "min_tokens"),
    ({"prompt": PROMPT, "max_tokens": 8192}, openai.BadRequestError, "prompt"),
    ({"prompt": "x", "extra_body": {"no_such": 1}}, openai.BadRequestError, "no_such"),
    ({"prompt": "x", "model": "gpt-none"}, openai.NotFoundError, "model"),
])
def test_errors_are_those_of_the_client(client, arguments, kind, param):
    with pytest.raises(kind) as raised:
        client.completions.create(**{"model": "tiny", **arguments})
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"
    assert raised.value.body["message"]


def test_a_chat_template_is_used(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(quire_server.TINY, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    rendered = "[SYSTEM] Be brief.\n[USER] Who are you?\n[ASSISTANT]"
    with quire_server.serving(tmp_path / "serve", model=model) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        chat = client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=12)
        plain = client.completions.create(model="model", prompt=rendered, max_tokens=12)
        assert chat.choices[0].message.content == plain.choices[0].text
        assert "no chat template" not in server.stderr.read_text()


def test_without_a_template_the_log_says_so_once(server, client):
    for _ in range(2):
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert server.stderr.read_text().count("no chat template") == 1


def test_a_session_has_its_own_min_p(server):
    """At temperature 100 anything is drawn, but for what is less likely than the likeliest."""
    def text(**sampling):
        session = server.ask("/v1/sessions", {"seed": 1, **sampling})[1]["id"]
        status, answer = server.ask("/v1/completions",
                                    {"session": session, "prompt": PROMPT, "max_tokens": 24})
        assert status == 200, answer
        refused = server.ask("/v1/completions", {"session": session, "prompt": "a", "min_p": 0.1})
        assert refused[0] == 400 and refused[1]["error"]["param"] == "session"
        return answer["choices"][0]["text"]

    assert text(temperature=100, min_p=1) == text(temperature=0) != text(temperature=100)


def test_sessions(server):
    session = server.ask("/v1/sessions", {})[1]["id"]
    text = ""
    for piece in ("It is a truth universally ", "acknowledged, that a "):
        status, answer = server.ask("/v1/completions", {"session": session, "prompt": piece,
                                                        "max_tokens": 8})
        assert status == 200, answer
        text += piece
        alone = server.ask("/v1/completions", {"prompt": text, "max_tokens": 8, "reuse": False})[1]
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
        text += answer["choices"][0]["text"]
    # Fed, not asked.
    status, fed = server.ask("/v1/completions", {"session": session, "prompt": "More.",
                                                 "max_tokens": 0})
    assert status == 200 and fed["choices"][0]["text"] == "", fed
    assert server.ask(f"/v1/sessions/{session}")[1]["tokens"] == len(text) + 5
    assert server.ask(f"/v1/sessions/{session}", method="DELETE")[1]["deleted"] is True
    assert server.ask(f"/v1/sessions/{session}")[0] == 404


def curl_lines():
    """The README's curl commands, with their continuation lines."""
    text = (quire_cli.REPOSITORY / "README.md").read_text()
    lines = re.findall(r"^curl (?:.*\\\n)*.*$", text, re.MULTILINE)
    return lines or ["the README has no line that begins with curl"]


@pytest.mark.parametrize("line", curl_lines())
def test_curl_lines_of_the_readme(server, line):
    assert "127.0.0.1:8080" in line, line
    done = subprocess.run(["bash", "-c", line.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
                           + " --fail-with-body --silent --show-error"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    if "stream" in line:
        assert done.stdout.rstrip().endswith("data: [DONE]")
