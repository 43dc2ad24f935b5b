"""Compares rendered chats with jinja2, set up as transformers does it; run by tests/hf/text.sh."""

import argparse
import json
import pathlib
import sys

import chat_cases
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from text_tool import TextTool

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "chat"
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def support(caller):
        return caller()


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


def wanted(case):
    """The text, or None where jinja2 fails."""
    variables = {"messages": case["messages"], "tools": case["tools"], "documents": None,
                 "add_generation_prompt": case["prompt"], "bos_token": "<s>", "eos_token": "</s>",
                 **case["variables"]}
    try:
        return environment().from_string(case["template"]).render(**variables)
    except Exception:  # pylint: disable=broad-except  # whatever it is, there is no text
        return None


def case(template, messages, tools=None, prompt=True, variables=None):
    return {"template": template, "messages": messages, "tools": tools, "prompt": prompt,
            "variables": variables or {}, "config": CONFIG}


def cases():
    """(name, template file or None, conversation, number of options, case)."""
    for path in sorted(GOLDEN.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for conversation, messages in chat_cases.CONVERSATIONS.items():
            for number, options in enumerate(chat_cases.OPTIONS):
                yield path.name, conversation, number, case(source, messages, **options)
    for snippet in chat_cases.SNIPPETS:
        yield None, "snippet", 0, case(snippet, chat_cases.CONVERSATIONS["snippet"])


def golden(texts):
    """What tests/golden/chat_golden_test.cc reads: one text of each kind, and every snippet."""
    kept = []
    seen = set()
    for (name, conversation, number, one), text in texts:
        if name is not None and text in seen and text is not None:
            continue
        if number > 0 and conversation not in ("turns", "tools", "open"):
            continue
        seen.add(text)
        template = {"file": name} if name else {"source": one["template"]}
        kept.append({**template, "messages": conversation, "options": number, "text": text})
    return {"config": CONFIG, "conversations": chat_cases.CONVERSATIONS,
            "options": chat_cases.OPTIONS, "refused": chat_cases.REFUSED, "cases": kept}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default=ROOT / "build/release/bin/text_tool")
    parser.add_argument("--write-golden", action="store_true")
    arguments = parser.parse_args()
    tool = TextTool(arguments.tool)
    different = 0
    texts = []
    for key in cases():
        one = key[-1]
        text = wanted(one)
        texts.append((key, text))
        said = tool(**one)
        if said.get("text") != text:
            different += 1
            print(f"{key[:3]} {one['template'][:200]!r}:\n  wanted {text!r}\n  found  {said!r}")
    for snippet in chat_cases.REFUSED:
        said = tool(**case(snippet, chat_cases.CONVERSATIONS["snippet"]))
        if "error" not in said:
            different += 1
            print(f"{snippet!r}: not refused: {said!r}")
    tool.close()
    if arguments.write_golden:
        text = json.dumps(golden(texts), ensure_ascii=False, indent=0)
        (GOLDEN / "golden.json").write_text(text + "\n", encoding="utf-8")
    print(f"chat: {len(texts)} cases, {different} differences")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
