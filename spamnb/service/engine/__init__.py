"""The model in use: extract, score, plan, learn, commit, look up."""
