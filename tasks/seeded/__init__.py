"""Tensors whose every element follows from a seed, the tensor's name and the element's place, so any part is made anywhere.

Who holds a shard, rows of an embedding, or nothing at all, makes exactly what the whole tensor has there: no message, no order to
keep, no memory but the part's own. From below: `bits` (random words of a tile), `quantiles` (tables), `grid` (which tiles a part
needs), `laws` (distributions), `draw` (from words to values), `tensor` (any part, as numpy), `layout` (torch tensors and DTensors).
All but the last do without torch.
"""
