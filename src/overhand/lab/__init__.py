"""The laboratory: simulations, rivals, bounds, evidence, attacks on the deployment, figures."""
