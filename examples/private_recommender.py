"""A recommender whose server never sees who liked what: users and services, connected by hand.

Three kinds of people, three songs. A user's device keeps to itself which kind the user is, the
song it played and whether the user liked it. It sends one message; the shuffling service adds up
what is masked and adds its noise, the server takes off the masks, adds noise of its own, and sends
out policies.

python examples/private_recommender.py
"""

from __future__ import annotations

import numpy as np

import overhand as oh
from overhand.bandits import LinUCB, Practical, check_contexts, choose_arms, plan_for_regret
from overhand.model import Messages
from overhand.shuffle import shuffle, with_added

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
    (mechanism,) = plan.mechanisms
    learner = LinUCB(Practical(dimension, constant=np.sqrt(0.5)))
    print(plan)

    server, policy = oh.SumServer(plan), None
    block: list[Messages] = []  # what the shuffling service holds
    random = oh.secure_random()
    theirs, ours = (mechanism.start_noise(random) for _ in range(2))  # secrets of the services
    liked = np.zeros(USERS)
    for t in range(1, USERS + 1):
        # On the user's own device, from where only messages go out:
        kind = int(rng.integers(KINDS))
        songs = check_contexts(contexts_of(kind), dimension)
        song = int(choose_arms(policy, songs, random))
        liked[t - 1] = rng.random() < LIKES[kind, song]
        rows = learner.rows(songs[[song]], liked[[t - 1]])
        block.append(mechanism.encode_rows(rows, random))
        # A full block goes to the server with noise in it, which makes the next policy of it:
        for node in plan.tree.closes(t):
            noise, theirs = mechanism.advance_noise(theirs, random)
            sent = with_added(Messages.concatenate(block).gather(node.size), mechanism, noise)
            noise, ours = mechanism.advance_noise(ours, random)
            server.receive(node, shuffle(sent, random), noise)
            estimate, block = server.estimate(), []
            policy = learner.policy(estimate.t, estimate.value, estimate.std)

    for start in range(0, USERS, 1000):
        share = liked[start : start + 1000].mean()
        print(f"users {start + 1:>5,} to {start + 1000:>5,}: {share:.0%} liked their song")
    print(f"at random: {LIKES.mean():.0%}; at best: {LIKES.max(axis=1).mean():.0%}")


if __name__ == "__main__":
    main()
