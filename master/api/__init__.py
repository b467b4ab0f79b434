"""The master's HTTPS API: the children's part and the admin's. `make_app` builds it, `serve` runs it."""
