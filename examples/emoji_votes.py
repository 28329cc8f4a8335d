"""Which emoji people send, and which one goes viral, when nobody reveals what they sent.

200,000 votes for 24 emoji (Zipf); half way, one begins to spread. A vote is a histogram's bucket.

python examples/emoji_votes.py [figure.png]
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.plots import colours_of, new_figure

EMOJI = "😂😍😭😊😘😁😉😎😅😡😴😱😇😋😜😢😏😳😌😷😈😒😞🙀"
VOTES, CHUNK, WINDOW, VIRAL = 200_000, 25_000, 4_000, EMOJI.index("😢")
PRIVACY, BUCKETS = oh.Privacy(epsilon=1.0, delta=1e-6), oh.Histogram(len(EMOJI))
LOCAL_STD = np.sqrt(local_counter(VOTES, PRIVACY, BUCKETS).user_variance)  # of one vote
RED, BLUE, BLACK = colours_of(("local", "5 shufflers", "truth"))


def votes() -> NDArray[np.int64]:
    rng = np.random.default_rng(1)
    popularity = 1 / np.arange(1.0, len(EMOJI) + 1)
    chosen = rng.choice(len(EMOJI), VOTES, p=popularity / popularity.sum())
    copied = 0.3 / (1 + np.exp(-(np.arange(VOTES) - 0.6 * VOTES) / 6_000))
    return np.where(rng.random(VOTES) < copied, VIRAL, chosen)


def main() -> None:
    values = votes()
    plan = oh.Plan.best(VOTES, 5, PRIVACY, values=BUCKETS)
    # Seeded because this is a simulation that must print the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    for start in range(0, VOTES, CHUNK):
        total.update_many(values[start : start + CHUNK])
        leaders = " ".join(EMOJI[bar.coordinate] for bar in total.estimate.top(5))
        print(f"{total.t:>7,} votes: {leaders}, 😢 has {total.estimate.mean().value[VIRAL]:.1%}")
    for j, _, low, high, *_ in total.estimate.mean().top(3):  # bars that hold for all 24 at once
        print(f"{EMOJI[j]} {low:.2%} to {high:.2%} (truth: {np.mean(values == j):.2%})")
    if len(sys.argv) > 1:
        draw(sys.argv[1], total, values)


def draw(path: str, total: oh.ContinualSum, values: NDArray[np.int64]) -> None:
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    recent = total.between(VOTES - 20_000, VOTES).mean()
    local = oh.Estimate(recent.t, recent.value, LOCAL_STD / np.sqrt(recent.users))
    for ours, theirs in zip(recent.top(10), local.top(10), strict=True):
        label, share = EMOJI[ours.coordinate], ours.value
        left.bar(label, share, color=BLUE, alpha=0.8 if ours.coordinate == VIRAL else 0.4)
        left.errorbar(label, share, theirs.high - share, lw=5, color=RED, alpha=0.3)
        left.errorbar(label, share, ours.high - share, capsize=3, color=BLUE)
        left.plot(label, np.mean(values[-20_000:] == ours.coordinate), "_", ms=16, color=BLACK)
    left.tick_params(axis="x", labelsize=18)
    left.set(title=f"The last {recent.users:,} votes (red: local)", ylabel="share of votes")
    width = WINDOW - WINDOW % total.plan.tree.lowest  # whole blocks: no user of it is pending
    windows = [total.between(a, a + width).mean() for a in range(0, VOTES - width + 1, width)]
    t, truth = np.array([(w.t / 1_000, np.mean(values[w.start : w.t] == VIRAL)) for w in windows]).T
    far = 1.96 * LOCAL_STD / np.sqrt(width)
    right.fill_between(t, truth - far, truth + far, fc=RED, alpha=0.15, label="local, 95 %")
    low, high = np.transpose([w.interval(0.95) for w in windows])[VIRAL]
    right.fill_between(t, low, high, fc=BLUE, alpha=0.4, label="5 shufflers, 95 %")
    right.plot(t, [w.value[VIRAL] for w in windows], color=BLUE, label="5 shufflers")
    right.plot(t, truth, "--", color=BLACK, lw=1.2, label="truth")
    right.set(title=f"Share of {EMOJI[VIRAL]} in each {width:,} votes", xlabel="thousand votes")
    right.legend(frameon=False, loc="upper left")
    for ax in (left, right):
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
