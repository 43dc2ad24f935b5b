"""--window and --sinks: a model without windows sees its first tokens and its last ones."""

import pytest

import quire_cli
import random_model

PLAIN = {"max_position_embeddings": 4096}
WINDOW = 48


def case(fields):
    return random_model.Case("window", family="mistral", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32,
                             intermediate=96, vocab=300, rope_theta=1e4, tied=True, prompt_tokens=500,
                             fields={**PLAIN, **fields})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same weights with a window of the model's own, and without one."""
    made = {}
    for name, fields in (("own", {"sliding_window": WINDOW}), ("none", {"sliding_window": None})):
        made[name] = tmp_path_factory.mktemp(name)
        random_model.write_model(case(fields), 1, made[name])
    return made


def generate(model, *flags):
    ids = ",".join(str(number) for number in random_model.raw_u32(1, "window/prompt", 500) % 300)
    done = quire_cli.run("generate", "--model", model, "--prompt-ids", ids, "--max-tokens", 8, "--json", *flags)
    assert done.exit_code == 0, done.describe()
    return done.json["logits_digest"]


def test_a_window_that_is_given_is_the_models_own(models):
    assert generate(models["none"], "--window", WINDOW) == generate(models["own"])


def test_a_window_over_all_tokens_changes_nothing(models):
    whole = generate(models["none"])
    assert generate(models["none"], "--window", 600) == whole
    assert generate(models["none"], "--window", WINDOW) != whole


def test_sinks_stay_in_sight(models):
    """As far as window and sinks reach over all there is no difference; and else each of them counts."""
    whole = generate(models["none"])
    assert generate(models["none"], "--window", WINDOW, "--sinks", 508) == whole
    digests = {generate(models["none"], "--window", WINDOW, "--sinks", sinks) for sinks in (0, 1, 4)}
    assert len(digests) == 3 and whole not in digests


def test_what_one_window_stored_is_not_anothers(models, tmp_path):
    store = ("--store", tmp_path / "store")
    first = generate(models["none"], *store, "--window", WINDOW, "--sinks", 4)
    assert generate(models["none"], *store, "--window", WINDOW, "--sinks", 4) == first
    assert generate(models["none"], *store) == generate(models["none"])
    assert generate(models["none"], *store, "--window", WINDOW) == generate(models["own"])


def test_what_cannot_be_is_refused(models):
    for flags, code, why in ((("--sinks", 4), 3, "without window_tokens"), (("--window", 9), 3, "a window of its own")):
        model = models["own"] if "--window" in flags else models["none"]
        refused = quire_cli.run("generate", "--model", model, "--prompt-ids", "1,2", *flags)
        assert refused.exit_code not in (0, 1) and why in refused.stderr, (code, refused.describe())


def test_plan_knows_the_window(models):
    config = models["none"] / "config.json"
    small = [quire_cli.run("plan", "--config", config, "--tokens", tokens, "--window", 64, "--sinks", 4,
                           "--json").json["bytes_total"] for tokens in (20_000, 1_000_000)]
    whole = quire_cli.run("plan", "--config", config, "--tokens", 20_000, "--json").json["bytes_total"]
    assert small[0] == small[1] < whole / 10
