"""Many scenarios, of the layers of many models: what choices and models of time are held against.

`scenarios_wide.json` is written from here: `python -m tools.bench.families` prints it. A layer's sizes are those of the
model's published `config.json`; tokens (M) run from 16 to 32768, and the seed gives every layer two numbers of them,
one up to 1024 and one above where it can have both. What the bench measures anyway is not among them. Half of the
scenarios are `fitted`: anything may be fitted to them. The others are `unseen`: nothing may be.

Layers:

* `qkv`, `gateup`: weights cut by columns, behind an all-gather of the tokens; `o`, `down`: by rows, before a
  reduce-scatter (tensor parallel).
* `expert_up`, `expert_down`: the same for one expert of a mixture, with the tokens that come to it on average (expert
  parallel, each expert's weights cut among the ranks): M is tokens · active / experts.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .scenarios import DEFAULT_FILE, OPERATIONS, decode, load

FILE = Path(__file__).with_name("scenarios_wide.json")
SEED = 18
TOKENS = (16, 40, 64, 200, 256, 512, 1000, 1024, 2048, 3000, 4096, 5000, 8192, 12000, 16384, 32768)
MOST = 10**13  # M · N · K: about 13 ms on two GPUs
RANKS = 8  # the most that every size is cut by


@dataclass(frozen=True, slots=True)
class Model:
    """Of a published configuration: hidden size, heads, key-value heads, head size, intermediate size; of a mixture the
    experts, those that are active for a token, and an expert's intermediate size."""

    family: str
    name: str
    source: str
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int | None
    experts: int = 0
    active: int = 0
    expert_inner: int = 0


HUB = "https://huggingface.co/"
MODELS = (
    Model("Llama", "llama8b", HUB + "meta-llama/Llama-3.1-8B", 4096, 32, 8, 128, 14336),
    Model("Llama", "llama70b", HUB + "meta-llama/Llama-3.1-70B", 8192, 64, 8, 128, 28672),
    Model("Llama", "llama405b", HUB + "meta-llama/Llama-3.1-405B", 16384, 128, 8, 128, 53248),
    Model("Qwen", "qwen7b", HUB + "Qwen/Qwen2.5-7B", 3584, 28, 4, 128, 18944),
    Model("Qwen", "qwen32b", HUB + "Qwen/Qwen3-32B", 5120, 64, 8, 128, 25600),
    Model("Qwen", "qwen235b", HUB + "Qwen/Qwen3-235B-A22B", 4096, 64, 4, 128, None, 128, 8, 1536),
    Model("DeepSeek", "deepseek671b", HUB + "deepseek-ai/DeepSeek-V3", 7168, 0, 0, 0, 18432, 256, 8, 2048),
    Model("Mixtral", "mixtral8x22b", HUB + "mistralai/Mixtral-8x22B-v0.1", 6144, 48, 8, 128, None, 8, 2, 16384),
    Model("GPT-OSS", "gptoss120b", HUB + "openai/gpt-oss-120b", 2880, 64, 8, 64, None, 128, 4, 2880),
    Model("Gemma", "gemma2_27b", HUB + "google/gemma-2-27b", 4608, 32, 16, 128, 36864),
    Model("Gemma", "gemma3_27b", HUB + "google/gemma-3-27b-pt", 5376, 32, 16, 128, 21504),
)
# DeepSeek-V3's attention: q_b of 128 heads of 128 + 64 from a rank of 1536, kv_b of 128 heads of 128 + 128 from a rank
# of 512, o of 128 heads of 128.
DEEPSEEK = (("q_b", "ag_gemm", 128 * 192, 1536), ("kv_b", "ag_gemm", 128 * 256, 512), ("o", "gemm_rs", 7168, 128 * 128))


@dataclass(frozen=True, slots=True)
class Layer:
    """A product of a model: N and K, and the share of the tokens that come to it."""

    part: str
    operation: str
    n: int
    k: int
    share: tuple[int, int] = (1, 1)


def layers(model: Model) -> Iterator[Layer]:
    """The products of a model that are cut among ranks."""
    if model.heads:
        wide = model.heads * model.head
        yield Layer("qkv", "ag_gemm", wide + 2 * model.kv_heads * model.head, model.hidden)
        yield Layer("o", "gemm_rs", model.hidden, wide)
    else:
        yield from (Layer(*layer) for layer in DEEPSEEK)
    if model.inner is not None:
        yield Layer("gateup", "ag_gemm", 2 * model.inner, model.hidden)
        yield Layer("down", "gemm_rs", model.hidden, model.inner)
    if model.experts:
        share = (model.active, model.experts)
        yield Layer("expert_up", "ag_gemm", 2 * model.expert_inner, model.hidden, share)
        yield Layer("expert_down", "gemm_rs", model.hidden, model.expert_inner, share)


def wide() -> dict[str, list[dict[str, object]]]:
    """The scenarios by operation, each with its split; the same for the same seed."""
    draw = random.Random(SEED)
    found: dict[str, list[dict[str, object]]] = {"ag_gemm": [], "gemm_rs": []}
    for model in MODELS:
        for layer in layers(model):
            for m in _two(_rows(layer), draw):
                row = {"name": f"{model.name}_{layer.part}_{m}", "M": m, "N": layer.n, "K": layer.k}
                found[layer.operation].append({**row, "model": model.name})
    rows = [row for listed in found.values() for row in listed]
    for i, row in enumerate(draw.sample(rows, len(rows))):
        row["split"] = ("fitted", "unseen")[i % 2]
    return found


def _two(rows: list[int], draw: random.Random) -> list[int]:
    """A small one and a large one, or two of what there is."""
    small, large = [m for m in rows if m <= 1024], [m for m in rows if m > 1024]
    return sorted([draw.choice(small), draw.choice(large)] if small and large else draw.sample(rows, 2))


def _rows(layer: Layer) -> list[int]:
    """The numbers of rows that the layer may get: a multiple of the ranks, 16 at least, none too long to measure."""
    top, bottom = layer.share
    public = {(s.operation, s.m, s.n, s.k) for s in (*load(DEFAULT_FILE)[0], *decode())}
    found = {tokens * top // bottom // RANKS * RANKS for tokens in TOKENS}
    fit = (m for m in found if m >= 16 and m * layer.n * layer.k <= MOST)
    return sorted(m for m in fit if (layer.operation, m, layer.n, layer.k) not in public)


def text() -> str:
    """The file's text: a line a scenario."""
    about = (
        f"Written by python -m tools.bench.families, seed {SEED}. Global sizes, as in scenarios.json. 'fitted': "
        "anything may be fitted to it; 'unseen': nothing may be."
    )
    models = {m.name: f"{m.family}: config.json of {m.source}" for m in MODELS}
    parts = [f' "about": {json.dumps(about)}', f' "models": {json.dumps(models, indent=2)}']
    for operation, rows in wide().items():
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        parts.append(f' "{operation}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def splits() -> dict[tuple[str, int, int, int], str]:
    """`fitted` or `unseen`, by operation and sizes."""
    data = json.loads(FILE.read_text())
    rows = ((operation, row) for operation in OPERATIONS for row in data.get(operation, ()))
    return {(operation, row["M"], row["N"], row["K"]): row["split"] for operation, row in rows}


if __name__ == "__main__":
    sys.stdout.write(text())
