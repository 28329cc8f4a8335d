"""A recommender whose server never sees who liked what: users and server, connected by hand.

Three kinds of people, three songs. A user's device keeps to itself which kind the user is, the
song it played and whether the user liked it. It sends messages to two shufflers; the server sees
shuffled batches, and sends out policies.

python examples/private_recommender.py
"""

from __future__ import annotations

import numpy as np

import overhand as oh
from overhand.bandits import LinUCB, Practical, check_contexts, choose_arms, plan_for_regret
from overhand.model import Messages, Node
from overhand.shuffle import shuffle

KINDS, USERS = 3, 6000
LIKES = np.array([[0.9, 0.2, 0.3], [0.1, 0.8, 0.3], [0.2, 0.3, 0.9]])  # by kind and song


def contexts_of(kind: int) -> np.ndarray:
    """The features of the songs for this kind: a constant, and the pair of kind and song."""
    pairs = np.zeros((KINDS, 1 + KINDS * KINDS))
    pairs[:, 0] = pairs[range(KINDS), 1 + KINDS * kind + np.arange(KINDS)] = np.sqrt(0.5)
    return pairs


def main() -> None:
    rng = np.random.default_rng(1)  # stands in for the users' lives
    dimension = 1 + KINDS * KINDS
    plan = plan_for_regret(USERS, 2, oh.Privacy(epsilon=4.0, delta=1e-6), dimension)
    learner = LinUCB(Practical(dimension, constant=np.sqrt(0.5)))
    print(plan)

    server, policy = oh.SumServer(plan), None
    batches: dict[Node, list[Messages]] = {}  # what the shufflers hold
    liked = np.zeros(USERS)
    for t in range(1, USERS + 1):
        # On the user's own device, from where only messages go out:
        kind, random = int(rng.integers(KINDS)), oh.secure_random()
        songs = check_contexts(contexts_of(kind), dimension)
        song = int(choose_arms(policy, songs, random))
        liked[t - 1] = rng.random() < LIKES[kind, song]
        rows = learner.rows(songs[[song]], liked[[t - 1]])
        for node in plan.tree.joins(t):
            messages = plan.mechanism(node).encode_rows(rows, random)
            batches.setdefault(node, []).append(messages)
        # A full batch is shuffled and goes to the server, which makes the next policy of it:
        for node in plan.tree.closes(t):
            batch = Messages.concatenate(batches.pop(node)).gather(node.size)
            server.receive(node, shuffle(batch, oh.secure_random()))
            estimate = server.estimate()
            policy = learner.policy(estimate.t, estimate.value, estimate.std)

    for start in range(0, USERS, 1000):
        share = liked[start : start + 1000].mean()
        print(f"users {start + 1:>5,} to {start + 1000:>5,}: {share:.0%} liked their song")
    print(f"at random: {LIKES.mean():.0%}; at best: {LIKES.max(axis=1).mean():.0%}")


if __name__ == "__main__":
    main()
