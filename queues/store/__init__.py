"""The parameter store: what holds a stream's parameters, and the one who changes them.

    MemoryStore(spec, parameters)               the writer; `.reader()` gives the other side      queues.store.memory
    FileWriter(folder, spec, parameters, epoch) opens or makes the store in a folder; takes its   queues.store.writer
                                                lock; `.recovered` says what it went on from
    FileReader(folder)                          for any process of the host; maps on first use    queues.store.reader
    RemoteReader(https, path, shapes)           for other machines, through a master's API        queues.store.remote

`parameters` are `queues.stream.model.Learner.parameters()`: where a new store begins. `epoch` is `StreamHome.epoch`, and `folder`
is `StreamHome.store`. Besides the seam, writers have `write_shared(path)`, a parameter set of the encoder's part at one step; and
their `apply` and `add` raise `RefusedValue`, before anything moved, for what is not finite or of another name or shape.
"""
