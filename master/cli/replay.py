"""`trunkline replay`."""

from master.cli.base import verb
from master.cli.stream import replay as of_a_stream
from trunkline.console import single

app = single()

verb(app, "replay")(of_a_stream)
