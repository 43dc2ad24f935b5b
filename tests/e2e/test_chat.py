"""generate --chat: the prompt goes through the model's chat template, and nothing else changes."""

import os
import shutil

import pytest

import quire_cli

TINY = quire_cli.REPOSITORY / "models/tiny"
QUESTION = "What colour is the sky?"
TEMPLATE = ("{%- for message in messages -%}\n[{{ message['role'] | upper }}] "
            "{{ message['content'] }}\n{% endfor -%}\n"
            "{%- if add_generation_prompt -%}\n[ASSISTANT]\n{%- endif -%}")
RENDERED = f"[USER] {QUESTION}\n[ASSISTANT]"


@pytest.fixture
def model(tmp_path):
    """The bundled model, which has no template of its own."""
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    return folder


def generate(model, *arguments):
    return quire_cli.run("generate", "--model", model, *arguments, "--max-tokens", 4, "--json")


def test_equals_the_rendered_prompt(model):
    (model / "chat_template.jinja").write_text(TEMPLATE)
    chat = generate(model, "--chat", "--prompt", QUESTION, "--temperature", 0)
    plain = generate(model, "--prompt", RENDERED, "--temperature", 0)
    assert chat.exit_code == plain.exit_code == 0, chat.describe() + plain.describe()
    assert chat.json["logits_digest"] == plain.json["logits_digest"]
    other = generate(model, "--prompt", QUESTION, "--temperature", 0)
    assert other.json["logits_digest"] != chat.json["logits_digest"]


def test_without_a_template(model):
    done = generate(model, "--chat", "--prompt", QUESTION)
    assert done.exit_code == 3, done.describe()
    assert str(model) in done.stderr and "chat template" in done.stderr, done.describe()


@pytest.mark.parametrize("template, word", [
    ("{% for message in messages %}", "endfor"),
    ("{{ messages | no_such_filter }}", "no_such_filter"),
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
])
def test_a_template_that_cannot_be_used(model, template, word):
    (model / "chat_template.jinja").write_text(template)
    done = generate(model, "--chat", "--prompt", QUESTION)
    assert done.exit_code == 3, done.describe()
    assert "template" in done.stderr and word in done.stderr, done.describe()


@pytest.mark.parametrize("expression", [
    "b in a", "a.find(b)", "a.count(b)", "a.split(b) | length", "a.replace(b, '') | length",
    "a.strip(w) | length", "m == t", "dict(m) | length"])
def test_a_hostile_template_ends(model, expression):
    """Without limits on the work itself each of these runs for hours."""
    forwards = ",".join(f"k{i}=1" for i in range(4000))
    backwards = ",".join(f"k{3999 - i}=1" for i in range(4000))
    (model / "chat_template.jinja").write_text(
        "{% set a = 'a' * 200000 %}{% set b = 'a' * 100000 ~ 'b' %}"
        "{% set w = '\u00e9' * 100000 ~ 'a' %}"
        "{% set m = dict(" + forwards + ") %}{% set t = dict(" + backwards + ") %}"
        "{% for i in range(100000) %}{% for j in range(100000) %}\n{{ " + expression + " }}"
        "{% endfor %}{% endfor %}", encoding="utf-8")
    begin = os.times()
    done = generate(model, "--chat", "--prompt", QUESTION)
    end = os.times()
    assert done.exit_code == 4, done.describe()
    assert "chat_template.jinja: line 2: more than" in done.stderr, done.describe()
    assert end.children_user - begin.children_user < 15, "seconds of the processor"


def test_takes_text_only(model):
    (model / "chat_template.jinja").write_text(TEMPLATE)
    done = generate(model, "--chat", "--prompt-ids", "1,2,3")
    assert done.exit_code in (2, 3), done.describe()
    assert "--prompt-ids" in done.stderr, done.describe()
