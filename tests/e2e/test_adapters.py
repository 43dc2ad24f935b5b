"""LoRA adapters by the command line and over HTTP: named, loaded and unloaded while serving, shared by
their users alone, found again after a restart."""

import json

import peft_directory
import quire_cli
import quire_server

MODEL = quire_server.TINY
PROMPT = "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 2
IDS = ",".join(str(byte) for byte in PROMPT.encode())


def generate(*flags):
    done = quire_cli.run("generate", "--model", MODEL, "--prompt-ids", IDS, "--max-tokens", 6, "--json",
                         *flags)
    assert done.exit_code == 0, done.describe()
    return done.json


def test_generate_answers_with_one(tmp_path):
    one = peft_directory.write(tmp_path / "one", MODEL, 1)
    base = generate()
    adapted = generate("--adapter", f"one={one}")
    assert adapted["logits_digest"] != base["logits_digest"]
    # The same bits beside sequences of the base model, in chunks, on any number of threads.
    beside = generate("--adapter", f"one={one}", "--beside", 2, "--chunk", 7, "--threads", 3)
    assert beside["logits_digest"] == adapted["logits_digest"]
    # A second process finds its blocks in the store, and no others'.
    store = ("--store", tmp_path / "store", "--load", "always")
    assert generate("--adapter", f"one={one}", *store)["reused_tokens"] == 0
    again = generate("--adapter", f"one={one}", *store)
    assert again["reused_tokens"] > 0 and again["logits_digest"] == adapted["logits_digest"]
    other = generate("--adapter", f"two={one}", *store)
    assert other["reused_tokens"] == 0 and other["logits_digest"] == adapted["logits_digest"]
    assert generate(*store)["reused_tokens"] == 0
    peft_directory.write(one, MODEL, 2)  # trained on
    changed = generate("--adapter", f"one={one}", *store)
    assert changed["reused_tokens"] == 0 and changed["logits_digest"] != adapted["logits_digest"]


def test_what_is_no_adapter_is_named(tmp_path):
    one = peft_directory.write(tmp_path / "one", MODEL, 1)
    config = json.loads((one / "adapter_config.json").read_text())

    def refused(code, *flags):
        done = quire_cli.run("generate", "--model", MODEL, "--prompt-ids", "1", *flags)
        assert done.exit_code == code, done.describe()
        return done.stderr

    assert "NAME=DIR" in refused(2, "--adapter", str(one))
    assert "adapter_config.json" in refused(3, "--adapter", f"x={tmp_path / 'nowhere'}")
    for field, value in (("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"])):
        (one / "adapter_config.json").write_text(json.dumps(config | {field: value}))
        assert field in refused(3, "--adapter", f"x={one}")
    (one / "adapter_config.json").write_text(json.dumps(config | {"r": 5}))
    assert "lora_A.weight: has shape [4," in refused(3, "--adapter", f"x={one}")


def test_plan_says_what_one_takes():
    done = quire_cli.run("plan", "--config", MODEL / "config.json", "--tokens", 100, "--adapter-rank", 16,
                         "--json")
    assert done.exit_code == 0 and done.json["bytes_adapter"] > 0, done.describe()


def test_calls_name_them_and_the_operator_changes_them(tmp_path):
    for number in (1, 2, 3):
        peft_directory.write(tmp_path / "adapters" / str(number), MODEL, number)
    flags = ("--operator-listen", "127.0.0.1:0", "--adapter", f"one={tmp_path}/adapters/1",
             "--adapter", f"two={tmp_path}/adapters/2", "--adapter-directory", tmp_path / "adapters")

    def operate(what, **body):
        return server.ask(f"/v1/{what}_lora_adapter", body, url=server.operator_url)

    def say(model):
        status, answer = server.ask("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 8,
                                                        "temperature": 0})
        assert status == 200, answer
        assert answer["model"] == model
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with quire_server.serving(tmp_path / "server", *flags) as server:
        base = server.ask("/v1/models")[1]["data"][0]["id"]
        assert [(model["id"], model.get("parent")) for model in server.ask("/v1/models")[1]["data"]] == [
            (base, None), ("one", base), ("two", base)]
        first = {name: say(name) for name in (base, "one", "two")}
        assert len({text for text, _ in first.values()}) == 3
        assert [cached for _, cached in first.values()] == [0, 0, 0]  # nothing is shared between them
        for name, (text, _) in first.items():
            again, cached = say(name)
            assert again == text and cached > 0
        assert server.ask("/v1/load_lora_adapter", {"lora_name": "three", "lora_path": "3"})[0] == 403
        assert operate("load", lora_name="three", lora_path="../../etc")[0] == 404
        assert operate("load", lora_name="three", lora_path="3")[0] == 200
        assert say("three")[0] not in {text for text, _ in first.values()}
        assert operate("unload", lora_name="one")[0] == 200
        status, answer = server.ask("/v1/completions", {"model": "one", "prompt": PROMPT})
        assert status == 404 and "'one'" in answer["error"]["message"]
        assert operate("load", lora_name="one", lora_path="1")[0] == 200
        again, cached = say("one")
        assert again == first["one"][0] and cached > 0
        metrics = server.ask("/metrics")[1]
        assert "quire_adapters 3" in metrics and "quire_adapter_bytes" in metrics
