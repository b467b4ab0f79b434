"""Real processes of one stream that are killed, stopped and set back at random, and the account at the end.

`python -m tests.chaos --seconds 600 --seed 7`, or `make chaos`.
"""
