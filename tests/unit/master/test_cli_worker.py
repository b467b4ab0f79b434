"""`trunkline worker` and `stream worker-token`: what is told before anybody is called."""

import pytest

from master.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("worker", "--redis", "redis://queues"), "`--url` should say where the master is"),
        (("worker", "--gradients", "bfloat16"), "`--url` should say where the master is"),
        (("worker", "--cache", "here", "--stream-folder", "there", "--url", "https://x"), "`--url` should say where the master is"),
        (("worker", "--gradients", "float16"), "float32"),
        (("worker", "--url", "https://x"), "`--token-file` should be given with `--url`, found none"),
        (("worker", "--url", "https://x", "--pool", "prefork"), "`--pool` should be solo, threads, found 'prefork'"),
        (("stream", "worker-token", "x", "--list", "--revoke"), "`--revoke` and `--list` should not be given at once"),
    ],
)
def test_what_cannot_be_is_told(words: tuple[str, ...], said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN_FILE", "CA"):
        monkeypatch.delenv(f"TRUNKLINE_{name}", raising=False)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
