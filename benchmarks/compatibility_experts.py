"""Cases of aws-neuron/nki-library: mixtures of experts, block by block."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.compatibility_cases import BF16, Result, f32, normal
from benchmarks.compatibility_library import library
from nki_sim.nki import language as nl
from nki_sim.nki import simulate


@dataclass(frozen=True)
class Mixture:
    """Tokens sorted into blocks of one expert each; the row after the last token is padding."""

    tokens: int = 256
    hidden: int = 512
    middle: int = 256
    experts: int = 4
    block: int = 128
    chosen: int = 1
    """Experts for each token."""
    ordered: bool = False
    """One block for each expert, in their order."""

    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Token of each position [blocks, block] and expert of each block [blocks]; padding comes last."""
        generator = np.random.default_rng(0)
        choice = np.argsort(generator.random((self.tokens, self.experts)), -1)[:, : self.chosen]
        count = -(-(self.tokens * self.chosen - self.experts) // self.block) + self.experts
        count = self.experts if self.ordered else count + count % 2
        positions, owner = np.full((count, self.block), self.tokens, np.int32), np.zeros(count, np.int32)
        at = 0
        for expert in range(self.experts):
            mine = np.flatnonzero((choice == expert).any(-1))
            if self.ordered and len(mine) > self.block:
                raise ValueError(f"expert {expert} has {len(mine)} tokens, more than a block of {self.block}")
            for start in range(0, len(mine), self.block):
                part = mine[start : start + self.block]
                positions[at, : len(part)], owner[at] = part, expert
                at += 1
        return positions, owner

    def affinities(self) -> np.ndarray:
        scores = np.abs(normal(self.tokens + 1, self.experts)).astype(BF16)
        scores[-1] = 0
        return scores

    def weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = normal(self.tokens + 1, self.hidden).astype(BF16)
        x[-1] = 0
        up = (normal(self.experts, self.hidden, 2, self.middle) * 0.05).astype(BF16)
        down = (normal(self.experts, self.middle, self.hidden) * 0.05).astype(BF16)
        return x, up, down

    def arguments(self) -> dict[str, Any]:
        positions, owner = self.blocks()
        x, up, down = self.weights()
        return {
            "hidden_states": x,
            "expert_affinities_masked": self.affinities().reshape(-1, 1),
            "gate_up_proj_weight": up,
            "down_proj_weight": down,
            "block_size": self.block,
            "token_position_to_id": positions.ravel(),
            "block_to_expert": owner[:, None],
        }

    def expected(self) -> np.ndarray:
        """Output [tokens, hidden], each expert's share scaled after its down projection."""
        positions, owner = self.blocks()
        x, up, down = (f32(part) for part in self.weights())
        scores, out = f32(self.affinities()), np.zeros((self.tokens + 1, self.hidden))
        for rows, expert in zip(positions, owner):
            gate, value = (x[rows] @ up[expert, :, i] for i in range(2))
            out[rows] += (gate / (1 + np.exp(-gate)) * value) @ down[expert] * scores[rows, expert, None]
        return out[:-1]


def first(result: Any, tokens: int) -> np.ndarray:
    """The tokens of what a kernel returns, alone or before what it saves for the way back."""
    out = result[0] if isinstance(result, (tuple, list)) else result
    wide = f32(out)
    if wide.ndim == 3:  # one sum for each core
        wide = wide.sum(0 if wide.shape[0] == 2 else 1)
    return wide[:tokens]


BLOCKWISE = "core/moe/moe_cte/"
for _file, _kernel in (
    (BLOCKWISE + "bwmm_shard_on_block.py", "bwmm_shard_on_block"),
    (BLOCKWISE + "bwmm_shard_on_I.py", "blockwise_mm_baseline_shard_intermediate"),
    (BLOCKWISE + "bwmm_shard_on_I.py", "blockwise_mm_baseline_shard_intermediate_hybrid"),
    (BLOCKWISE + "bwmm_shard_on_I.py", "blockwise_mm_shard_intermediate_dropping"),
    ("experimental/moe/forward/bwmm_shard_on_H.py", "blockwise_mm_baseline_shard_hidden"),
):
    for _mixture in (
        Mixture(block=1024 if _kernel.endswith("_dropping") else 256, ordered=_kernel.endswith("_dropping")),
        Mixture(512, 1024, 512, 2, 1024 if _kernel.endswith("_dropping") else 512, 2, _kernel.endswith("_dropping")),
    ):

        @library(
            _file,
            _kernel,
            f"{_mixture.tokens}x{_mixture.hidden}, {_mixture.chosen} of {_mixture.experts} experts, bfloat16, 2 cores",
            tolerance=2e-2,
        )
        def _(kernel: Any, mixture: Mixture = _mixture, name: str = _kernel) -> Result:
            scaling = sys.modules["nkilib.core.utils.common_types"].ExpertAffinityScaleMode.POST_SCALE
            arguments = mixture.arguments()
            if name.endswith("_hybrid"):
                conditions = (arguments["token_position_to_id"].reshape(-1, mixture.block) < mixture.tokens).any(-1)
                arguments["conditions"] = np.append(conditions, 0).astype(np.int32)
            got = simulate(kernel[2])(**arguments, expert_affinities_scaling_mode=scaling)
            return first(got, mixture.tokens), mixture.expected()


for _implementation in ("shard_on_block", "shard_on_i"):

    @library(BLOCKWISE + "moe_cte.py", "moe_cte", f"{_implementation}, 256x512, 1 of 4 experts, 2 cores", 2e-2)
    def _(kernel: Any, implementation: str = _implementation) -> Result:
        module = sys.modules[kernel.__module__]
        mixture = Mixture(block=256)
        spec = module.MoECTESpec(implementation=module.MoECTEImplementation[implementation])
        return first(simulate(kernel[2])(**mixture.arguments(), spec=spec), mixture.tokens), mixture.expected()


@library(
    "experimental/moe/bwd/blockwise_mm_backward.py",
    "blockwise_mm_bwd",
    "256x1024, 1 of 2 experts, bfloat16, 2 cores",
    tolerance=3e-2,
)
def _(kernel: Any) -> Result:
    mixture = Mixture(hidden=1024, experts=2, block=256)
    arguments = mixture.arguments()
    positions, owner = mixture.blocks()
    x, up, down = (f32(part) for part in mixture.weights())
    scores, dy = f32(mixture.affinities()), normal(mixture.tokens + 1, mixture.hidden, seed=5).astype(BF16)
    dy[-1] = 0
    saved_up, saved_down = [], []
    dx, dscores, dup, ddown = np.zeros_like(x), np.zeros_like(scores), np.zeros_like(up), np.zeros_like(down)
    for rows, expert in zip(positions, owner):
        gate, value = (x[rows] @ up[expert, :, i] for i in range(2))
        logistic = 1 / (1 + np.exp(-gate))
        middle = gate * logistic * value
        out = middle @ down[expert]
        saved_up.append(np.stack([gate.T, value.T]))
        saved_down.append(out)
        share = f32(dy)[rows]
        np.add.at(dscores[:, expert], rows, (share * out).sum(-1))
        dout = share * scores[rows, expert, None]
        ddown[expert] += middle.T @ dout
        dmiddle = dout @ down[expert].T
        dvalue = dmiddle * gate * logistic
        dgate = dmiddle * value * logistic * (1 + gate * (1 - logistic))
        dup[expert, :, 0] += x[rows].T @ dgate
        dup[expert, :, 1] += x[rows].T @ dvalue
        np.add.at(dx, rows, dgate @ up[expert, :, 0].T + dvalue @ up[expert, :, 1].T)
    got = simulate(kernel[2])(
        **arguments,
        gate_up_proj_act_checkpoint_T=np.stack(saved_up).astype(BF16),
        down_proj_act_checkpoint=np.stack(saved_down).astype(BF16),
        output_hidden_states_grad=dy,
        compute_dtype=nl.bfloat16,
    )
    expected = [dx[:-1], dscores[:-1], dup, ddown]
    parts = [f32(got[0])[:-1], f32(got[1]).reshape(scores.shape)[:-1], *map(f32, got[2:4])]
    scaled = [np.abs(e).max() for e in expected]
    return (
        np.concatenate([p.ravel() / s for p, s in zip(parts, scaled)]),
        np.concatenate([e.ravel() / s for e, s in zip(expected, scaled)]),
    )
