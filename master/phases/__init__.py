"""The phases of one round. Each takes the round as the ledger has it and returns it in its next state.

Nothing is sent to a child but what its state allows: an initial set goes only to members, members are only those whose confirmation
was accepted, and the token that opens a parameter set is made at that moment, for that child, round and digest.
"""
