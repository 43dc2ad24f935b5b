"""Train the tiny byte-level Qwen3 model: English, and retrieval of planted facts.

The vocabulary is the 256 bytes and a few special tokens, so no tokenizer stands between the text
and the model. Half of what it reads is made to be predictable from the context alone (repeated
strings, lists of names and numbers, facts planted in prose): at this size the heads that look up
and copy do not form from prose within a budget of an hour or two. Sequences grow from short to
long, and in the short ones positions jump, so that long distances are met early and cheaply.

The run saves its state now and then and goes on from it when started again.
"""

import argparse
import json
import math
import random
import re
import string
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import retrieval
from prepare import prepare

HERE = Path(__file__).parent
VOCAB, BOS, EOS, PAD = 288, 256, 257, 258  # 259..287 are never used
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 256, 4, 4, 2, 64, 640
THETA, EPS, MAX_POSITION = 100_000.0, 1e-6, 8192
REACH = 3072  # the longest distance that the jumping positions of short sequences pretend
MUON_LR, ADAM_LR = 0.02, 0.004
WARMUP = 50

# (steps, length, sequences a part, parts a step,
#  shares of prose / planted facts / lists / repeated strings,
#  what stands between a name and its number: right beside it, heads find it far more easily)
STAGES = [
    (400, 256, 8, 4, (0.30, 0.25, 0.25, 0.20), " is "),
    (400, 256, 8, 3, (0.25, 0.50, 0.20, 0.05), " is "),
    (200, 512, 4, 3, (0.40, 0.50, 0.10, 0.00), " is "),
    (250, 256, 8, 3, (0.20, 0.25, 0.40, 0.15), "="),
    (80, 1024, 2, 3, (0.40, 0.50, 0.10, 0.00), "="),
    (40, 3072, 1, 2, (0.40, 0.60, 0.00, 0.00), "="),
    (60, 1024, 2, 4, (0.45, 0.50, 0.05, 0.00), "="),
    (270, 3072, 1, 2, (0.45, 0.55, 0.00, 0.00), "="),
    (150, 3072, 1, 2, (0.35, 0.65, 0.00, 0.00), "="),
]
DECAY = 400  # the learning rate falls linearly to zero over the last steps


# ---------------------------------------------------------------------------------- the model


class Block(nn.Module):
    """One layer of Qwen3; the parameters carry the names that transformers gives them."""

    def __init__(self) -> None:
        super().__init__()
        attn, mlp = nn.Module(), nn.Module()
        attn.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        attn.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        attn.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        attn.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        attn.q_norm, attn.k_norm = nn.RMSNorm(HEAD_DIM, EPS), nn.RMSNorm(HEAD_DIM, EPS)
        mlp.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        mlp.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        mlp.down_proj = nn.Linear(FFN, HIDDEN, bias=False)
        self.self_attn, self.mlp = attn, mlp
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        a, h = self.self_attn, self.input_layernorm(x)

        def turn(t: torch.Tensor, norm: nn.Module) -> torch.Tensor:
            t = norm(t.view(batch, length, -1, HEAD_DIM)).transpose(1, 2)
            left, right = t.chunk(2, -1)
            return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

        q, k = turn(a.q_proj(h), a.q_norm), turn(a.k_proj(h), a.k_norm)
        v = a.v_proj(h).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        group = HEADS // KV_HEADS
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + a.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        h, m = self.post_attention_layernorm(x), self.mlp
        return x + m.down_proj(F.silu(m.gate_proj(h)) * m.up_proj(h))


class Tiny(nn.Module):
    """Qwen3 with tied embeddings, in as few operations as PyTorch allows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPS)
        inverse = THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
        angle = torch.outer(torch.arange(MAX_POSITION), inverse)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for block in self.layers:
            nn.init.zeros_(block.self_attn.o_proj.weight)
            nn.init.zeros_(block.mlp.down_proj.weight)
            # normalised queries and keys bound the scores: leave room to single out one key
            nn.init.constant_(block.self_attn.q_norm.weight, 2.0)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        for block in self.layers:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Newton-Schulz), for the hidden matrices; learns from less data."""

    def __init__(self, params, lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                grads = []
                for p in params:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    grads.append(p.grad.lerp(buffer, group["momentum"]))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonal(torch.stack(grads))):
                    p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of a stack of matrices near one."""
    tall = g.shape[1] > g.shape[2]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


# ----------------------------------------------------------------------------------- the data


class Data:
    """Draws training sequences: ids, the weight of predicting each of them, and positions."""

    ANSWER_WEIGHT = 6.0  # of the bytes that the context determines
    FILLER_WEIGHT = 0.5  # of the prose around planted facts: enough to stay fluent there

    def __init__(self, text: bytes, rng: random.Random) -> None:
        self.text, self.rng, self.joint = text, rng, ""
        self.ends = [m.start() for m in retrieval.SENTENCE_END.finditer(text)]

    def name(self) -> str:
        """A known name or, so that names need not be known, a made-up one."""
        if self.rng.random() < 0.4:
            return self.rng.choice(retrieval.TRAIN_NAMES)
        letters = self.rng.choices(string.ascii_lowercase, k=self.rng.randint(2, 8))
        return "".join(letters).capitalize()

    def facts(self, number: int) -> list[tuple[str, str]]:
        """Distinct names, each with its number."""
        names = list({self.name() for _ in range(number)})
        return [(name, retrieval.random_value(self.rng)) for name in names]

    def mention(self, fact, seen: set, short: bool = False):
        """A fact as bytes and weights; its number counts only where it was told before."""
        name, value = fact
        head = (" " if short else " The secret number of ") + name + self.joint
        tail = value + "."
        told = fact in seen
        seen.add(fact)
        weight = [0.1] * len(head) + [self.ANSWER_WEIGHT if told else 0.0] * len(tail)
        return (head + tail).encode(), weight

    def prose(self, length: int):
        """Plain text, every byte of equal weight."""
        at = self.rng.randrange(len(self.text) - length)
        return self.text[at : at + length], [1.0] * length

    def planted(self, length: int):
        """Prose with facts between its sentences, and questions about them at the end."""
        rng = self.rng
        facts = self.facts(rng.randint(1, max(1, min(8, length // 120))))
        asked = rng.sample(facts, rng.randint(1, len(facts)))
        mentions = facts + (rng.choices(facts, k=len(facts)) if rng.random() < 0.3 else [])
        longest = max(len(self.mention(f, set())[0]) for f in facts)
        room = length - (len(mentions) + len(asked)) * longest
        first = rng.randrange(len(self.ends) - 400)
        start = self.ends[first] + 1
        places = [e for e in self.ends[first + 1 : first + 120] if e - start <= room] or [start]
        out, weights, seen = bytearray(), [], set()
        done = start

        def say(piece) -> None:
            out.extend(piece[0])
            weights.extend(piece[1])

        rng.shuffle(mentions)
        for at, fact in zip(sorted(rng.choices(places, k=len(mentions))), mentions):
            say((self.text[done:at], [self.FILLER_WEIGHT] * (at - done)))
            say(self.mention(fact, seen))
            done = at
        last = max(places)
        say((self.text[done:last], [self.FILLER_WEIGHT] * (last - done)))
        for fact in asked:
            say(self.mention(fact, seen))
        more = max(0, length - len(out))
        say((self.text[last : last + more], [self.FILLER_WEIGHT] * more))
        return bytes(out[:length]), weights[:length]

    def listed(self, length: int):
        """Facts told again and again in any order: many look-ups in few bytes."""
        short = self.rng.random() < 0.7
        facts = self.facts(self.rng.randint(2, max(2, min(12, length // (30 if short else 90)))))
        out, weights, seen = b"", [], set()
        while len(out) < length:
            piece, weight = self.mention(self.rng.choice(facts), seen, short)
            out, weights = out + piece, weights + weight
        return out[:length], weights[:length]

    def repeated(self, length: int):
        """Strings of random letters and digits, in any order; the first bytes of each are free."""
        rng = self.rng
        alphabet = (string.ascii_letters + string.digits + " .").encode()
        pool = [bytes(rng.choices(alphabet, k=rng.randint(6, 40)))
                for _ in range(rng.randint(2, max(2, length // 60)))]
        out, weights, seen = b"", [], set()
        while len(out) < length:
            piece = rng.choice(pool)
            out += piece
            weights += [0.0] * 3 + [float(piece in seen)] * (len(piece) - 3)
            seen.add(piece)
        return out[:length], weights[:length]

    def positions(self, length: int, jump: bool) -> np.ndarray:
        """0, 1, 2, ... with, in half of the made-up sequences, two leaps forward."""
        positions = np.arange(length)
        if jump and length < REACH and self.rng.random() < 0.5:
            for _ in range(2):
                positions[self.rng.randrange(length) :] += self.rng.randrange((REACH - length) // 2)
        return positions

    def batch(self, length: int, number: int, shares: tuple[float, ...]):
        """`number` sequences in the given shares, as tensors."""
        makers = (self.prose, self.planted, self.listed, self.repeated)
        ids = np.zeros((number, length + 1), dtype=np.int64)
        weights = np.zeros((number, length + 1), dtype=np.float32)
        positions = np.zeros((number, length), dtype=np.int64)
        for row, maker in enumerate(self.rng.choices(makers, shares, k=number)):
            piece, weight = maker(length + 1)
            ids[row] = np.frombuffer(piece, dtype=np.uint8)
            weights[row] = weight
            positions[row] = self.positions(length, maker != self.prose)
            if self.rng.random() < 0.5:
                ids[row, 0] = BOS
        return (torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:]),
                torch.from_numpy(weights[:, 1:]), torch.from_numpy(positions))


# ------------------------------------------------------------------------------------- export


def tokenizer_json() -> dict:
    """Byte-level BPE without merges: the id of a byte is the byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))  # GPT-2's stand-ins for the bytes that do not print
    vocab = {chr(b if b in kept else next(others)): b for b in range(256)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    special = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for i, c in ((BOS, "<bos>"), (EOS, "<eos>"), (PAD, "<pad>"))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}


def export(model: Tiny, folder: Path) -> None:
    """Write the folder that transformers and other engines read."""
    special = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "rms_norm_eps": EPS, "rope_theta": THETA, "rope_scaling": None,
        "max_position_embeddings": MAX_POSITION, "attention_bias": False,
        "attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": None,
        "max_window_layers": LAYERS, "tie_word_embeddings": True, "initializer_range": 0.02,
        "use_cache": True, "torch_dtype": "bfloat16", **special}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
        "pad_token": "<pad>", "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITION}
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer_json()),
                          ("generation_config.json", {"do_sample": False, **special}),
                          ("tokenizer_config.json", tokenizer_config)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {f"model.{name}": value.to(torch.bfloat16).contiguous()
               for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# ----------------------------------------------------------------------------------- training


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: bytes, length: int, number: int) -> float:
    """Of the text, over `number` windows spread evenly."""
    total = 0.0
    for i in range(number):
        at = i * (len(text) - length - 1) // number
        ids = torch.tensor(list(text[at : at + length + 1]))[None]
        logits = model(ids[:, :-1], torch.arange(length)[None])
        total += F.cross_entropy(logits[0], ids[0, 1:]).item()
    return total / number / math.log(2)


@torch.no_grad()
def accuracy(model: nn.Module, cases: list, text: bytes) -> float:
    """Share of exact answers; the highest logit at every byte is what greedy decoding does."""
    right = 0
    for case in cases:
        answer = case.answer()
        ids = torch.tensor(list(case.prompt(text) + answer))[None]
        logits = model(ids[:, :-1], torch.arange(ids.shape[1] - 1)[None])
        right += bool((logits[0, -len(answer):].argmax(-1) == ids[0, -len(answer):]).all())
    return right / len(cases)


def stage_of(step: int) -> tuple:
    """The stage that a step belongs to."""
    for stage in STAGES:
        if step < stage[0]:
            return stage
        step -= stage[0]
    return STAGES[-1]


def one_thread() -> None:
    """The parts of a step run side by side, each on one thread.

    Unlike threads inside every operation, they need not wait for each other at each of them,
    which is what counts on a machine that has other work as well.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def learn(model: nn.Module, params: list, batch: tuple) -> tuple:
    """Gradients of a part of a step; and its loss, bits per byte of prose, share of answers."""
    inputs, targets, weights, positions = batch
    logits = model(inputs, positions)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = (each * weights.flatten()).sum() / weights.numel()
    grads = torch.autograd.grad(loss, params)
    each, looked_up = each.detach().view_as(weights), weights == Data.ANSWER_WEIGHT
    prose = each[weights.eq(1.0).all(1)].mean().item() / math.log(2)
    right = (logits.argmax(-1) == targets)[looked_up].float().mean().item()
    return grads, (loss.item(), prose, right)


def train(args: argparse.Namespace) -> None:
    """The whole run, or the rest of it where a saved state lies in the work folder."""
    torch.manual_seed(args.seed)
    heldout_file = HERE / "heldout.txt"
    text = prepare(args.work, heldout_file)
    heldout = heldout_file.read_bytes()
    model = Tiny()
    params = list(model.parameters())
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in params if p.ndim == 1] + [model.embed_tokens.weight]
    muon = Muon(matrices, MUON_LR)
    adam = torch.optim.AdamW(others, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    state_file, step = args.work / "state.pt", 0
    if state_file.exists():
        state = torch.load(state_file)
        model.load_state_dict(state["model"])
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        step = state["step"]
    run = torch.compile(model, dynamic=False) if args.compile else model
    total = sum(stage[0] for stage in STAGES)
    print(f"{sum(p.numel() for p in params):,} parameters, step {step} of {total}",
          flush=True)
    # watched on training prose with the names of the test, so that heldout.txt stays unseen
    watch_far = retrieval.make_cases(text, 12, seed=7, near=2000, far=2600)
    data = Data(text, random.Random())
    one_thread()
    pool = ThreadPoolExecutor(args.threads, initializer=one_thread)
    clock, tokens, recent = time.time(), 0, []
    while step < total:
        _, length, rows, parts, shares, data.joint = stage_of(step)
        factor = min(1.0, (step + 1) / WARMUP, (total - step) / DECAY)
        for optimiser, rate in ((muon, MUON_LR), (adam, ADAM_LR)):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        data.rng.seed(args.seed * 1_000_003 + step)  # so that a resumed run reads the same
        batches = [data.batch(length, rows, shares) for _ in range(parts)]
        done = list(pool.map(lambda batch: learn(run, params, batch), batches))
        for p, *grads in zip(params, *(grads for grads, _ in done)):
            p.grad = torch.stack(grads).mean(0)
        nn.utils.clip_grad_norm_(others, 1.0)
        muon.step()
        adam.step()
        step += 1
        tokens += parts * rows * length
        recent += [figures for _, figures in done]
        if step % 25 == 0:
            speed = tokens / (time.time() - clock)
            loss, bits, right = np.nanmean(recent, axis=0)
            print(f"step {step} length {length} loss {loss:.3f} prose {bits:.3f} bits "
                  f"answers {right:.3f} rate {factor:.3f} {speed:,.0f} tokens/s", flush=True)
            clock, tokens, recent = time.time(), 0, []
        if step % args.every == 0 or step == total:
            near = max(100, length - 150)
            cases = retrieval.make_cases(text, 12, seed=8, near=near // 2, far=near)
            print(f"step {step} held-out {bits_per_byte(model, heldout, 1024, 6):.3f} bits/byte, "
                  f"retrieval {accuracy(model, cases, text):.2f} at {near // 2}..{near}, "
                  f"{accuracy(model, watch_far, text):.2f} at 2000..2600", flush=True)
            torch.save({"model": model.state_dict(), "muon": muon.state_dict(),
                        "adam": adam.state_dict(), "step": step}, state_file)
            clock = time.time()
    export(model, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/tiny"), help="scratch folder")
    parser.add_argument("--out", type=Path, default=HERE, help="where the model goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--compile", action="store_true",
                        help="use torch.compile (needs a C++ compiler)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
