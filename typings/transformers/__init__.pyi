# For the type checker only: the library's own sources are thousands of files that say little about types.
from typing import Any

def __getattr__(name: str) -> Any: ...
