"""A recommender whose server never sees who liked what: users and server, connected by hand.

Three kinds of people, three songs. A user's device keeps to itself which kind the user is, the
song it played and whether the user liked it. It sends messages to two shufflers; the server sees
shuffled batches, and sends out rules.

python examples/private_recommender.py
"""

from __future__ import annotations

import numpy as np

import overhand as oh
from overhand.bandits import BanditServer, BanditUser, LinUCB, Practical, plan_for_regret

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

    server = BanditServer(plan, learner)
    shufflers = [oh.Shuffler() for _ in range(plan.tree.levels)]
    liked = np.zeros(USERS)
    for t in range(1, USERS + 1):
        kind = int(rng.integers(KINDS))
        user = BanditUser(plan, learner, oh.secure_random())  # on the user's own device
        song = user.choose(server.policy, contexts_of(kind))
        liked[t - 1] = rng.random() < LIKES[kind, song]
        for node, messages in user.report(t, liked[t - 1]):
            shuffler = shufflers[node.level - 1]
            if not shuffler.is_active:
                shuffler.activate(plan.mechanism(node))
            shuffler.send(t, messages)
            if shuffler.is_full:
                server.receive(node, shuffler.release(oh.secure_random()))

    for start in range(0, USERS, 1000):
        share = liked[start : start + 1000].mean()
        print(f"users {start + 1:>5,} to {start + 1000:>5,}: {share:.0%} liked their song")
    print(f"at random: {LIKES.mean():.0%}; at best: {LIKES.max(axis=1).mean():.0%}")


if __name__ == "__main__":
    main()
