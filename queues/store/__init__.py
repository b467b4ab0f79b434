"""The parameter store: what holds a stream's parameters, and the one who changes them."""
